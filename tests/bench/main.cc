// kvevict_bench: times the kernels against the limits of this machine.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "tests/bench/suites.h"

namespace kvevict::bench {

void BenchLimits(Session& session) {
  if (!session.wants("limits")) return;
  session.announce("limits");
  Repeat(session, [&](bool) {
    for (uint32_t threads : {1u, 2u}) {
      session.limits.FmaFlops(threads);
      session.limits.Exponentials(threads);
      session.limits.MemcpyBytes(threads);
      session.limits.ReadBytes(threads);
    }
  });
}

}  // namespace kvevict::bench

int main(int argc, char** argv) {
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
                 "select, compact, f32 A, ...");
  app.add_option("--repetitions", session.repetitions, "at least 1")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", json, "one JSON document on stdout");
  app.add_flag("--strict", strict, "exit with 1 if a floor is missed");
  app.add_flag("--smoke", session.smoke,
               "small shapes without goals, one repetition: does it run?");
  CLI11_PARSE(app, argc, argv);

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
    BenchSelect(session);
    BenchCompact(session);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}kvevict_bench: {}\n", terminal ? "\n" : "",
               error.what());
    return 2;
  }
  if (terminal) fmt::print(stderr, "\r\033[K");
  const Machine machine = DescribeMachine();
  fmt::print("{}{}",
             json ? session.report.Json(machine, session.limits)
                  : session.report.Table(machine, session.limits),
             json ? "\n" : "");
  return strict && session.report.missed_a_floor() ? 1 : 0;
}
