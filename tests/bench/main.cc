// kvevict_bench: times the kernels against the limits of this machine.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "core/status.h"
#include "tests/bench/suites.h"
#include "tools/commands/checks.h"
#include "tools/commands/output.h"

namespace kvevict::bench {

void BenchLimits(Session& session) {
  if (!session.Begins("limits")) return;
  Repeat(session, [&](bool) {
    for (uint32_t threads : {1u, 2u}) {
      session.limits.FmaFlops(session.simd, threads);
      session.limits.Exponentials(session.simd, threads);
      session.limits.MemcpyBytes(threads);
      session.limits.ReadBytes(threads);
    }
  });
}

}  // namespace kvevict::bench

int main(int argc, char** argv) {
  using namespace kvevict;
  using namespace kvevict::bench;
  CLI::App app(
      "Times kvevict's kernels. Every ratio is formed inside one repetition, "
      "so "
      "that it means the same on a busy machine; ratios of times and rates use "
      "CPU "
      "time.");
  std::string filter;
  bool json = false;
  bool strict = false;
  Session session;
  app.add_option("--filter", filter,
                 "only rows whose group contains this text: limits, scoring, "
                 "redundancy, merge, fit, signal, quantized, select, compact, "
                 "sequence, request, decode, paged, f32 A, "
                 "...")
      ->type_name("TEXT");
  app.add_option("--repetitions", session.repetitions, "1 to 1000 (default 5)")
      ->type_name("N")
      ->check(tools::WholeNumber(1, 1000));
  std::string simd;
  app.add_option("--simd", simd,
                 "whose code is timed: a SIMD target of `kvevict inspect` "
                 "(default: the first)")
      ->type_name("TARGET");
  app.add_flag("--json", json, "one JSON document on stdout");
  app.add_flag("--strict", strict, "exit with 1 if a floor is missed");
  app.add_flag("--smoke", session.smoke,
               "small shapes without goals, one repetition: does it run?");
  CLI11_PARSE(app, argc, argv);

  if (!simd.empty()) {
    const Status found = FindSimdTarget(simd.c_str(), &session.simd);
    if (!found.ok()) {
      fmt::print(stderr, "kvevict_bench: {}\n", LastErrorMessage());
      return 2;
    }
  }
  if (session.smoke) session.repetitions = 1;
  session.wants = [&](const std::string& name) {
    return name.find(filter) != std::string::npos;
  };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  session.announce = [&](const std::string& what) {
    if (terminal) fmt::print(stderr, "\r\033[K{} ...", what);
  };
  try {
    BenchLimits(session);
    BenchScoring(session);
    BenchH2o(session);
    BenchRedundancy(session);
    BenchMerge(session);
    BenchFit(session);
    BenchSignals(session);
    BenchQuantized(session);
    BenchSelect(session);
    BenchCompact(session);
    BenchAttend(session);
    BenchSequence(session);
    BenchBatch(session);
    BenchDecode(session);
    BenchPaged(session);
    BenchTables(session);
    BenchRequantize(session);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}kvevict_bench: {}\n", terminal ? "\n" : "",
               error.what());
    return 2;
  }
  if (terminal) fmt::print(stderr, "\r\033[K");
  const Machine machine = DescribeMachine(session.simd.name);
  try {
    tools::WriteOutput(json
                           ? session.report.Json(machine, session.limits) + "\n"
                           : session.report.Table(machine, session.limits));
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvevict_bench: {}\n", error.what());
    return 2;
  }
  return strict && session.report.missed_a_floor() ? 1 : 0;
}
