// The GPU test program compares what kvevict does on a GPU with what it does on the
// CPU, then measures how fast. It needs a driver and libnvrtc, nothing else. With
// an interpreter in the driver's place (--small) it needs no GPU either.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/gpu/checks.h"
#include "tests/gpu/rows.h"

namespace {

using namespace kvevict::gpu;  // NOLINT: a program

// The seed is the time: std::random_device needs a newer C library than the rest.
uint64_t FreshSeed() {
  return static_cast<uint64_t>(
      std::chrono::system_clock::now().time_since_epoch().count());
}

struct Options {
  Libraries libraries;
  bool small = false;
  std::string only;
  bool list = false;
  bool no_checks = false;
  bool rows = false;
  rows::RowOptions row_options{};
  uint64_t seed = FreshSeed();
  std::string json;
};

int Run(const Options& options) {
  const Gpu gpu(options.libraries);
  CreateContext(gpu.ContextOptions());  // throws the reason if there is none
  fmt::print("{}, sm_{}, driver {}\nseed {}\n", gpu.name(), gpu.sm(),
             gpu.driver().version, options.seed);
  const Effort effort{!options.small, options.seed, options.small ? 3u : 20u,
                      options.small ? 1u : 5u};
  Report report;
  nlohmann::json document = {{"gpu", gpu.name()},
                             {"sm", gpu.sm()},
                             {"driver", gpu.driver().version},
                             {"kvevict", kvevict_version()},
                             {"seed", options.seed}};
  // Saves after every part, since the next one may end the program.
  const auto save = [&] {
    document["checks"] = report.checks();
    if (options.json.empty()) return;
    std::ofstream(options.json) << document.dump(1) << '\n';
  };
  for (const Part& part : kParts) {
    if (options.no_checks) break;
    if (!options.only.empty() && options.only != part.name) continue;
    part.run(gpu, effort, &report);
    save();
  }
  if (options.rows) {
    report.Check("rows", [&] {
      const Limits limits = MeasureLimits(gpu, effort);
      nlohmann::json& table = document["rows"];
      table = {{"copy_bytes_per_s", limits.copy},
               {"matrix_flops_per_s", limits.matrix},
               {"against", options.row_options.against}};
      const int n_failed = rows::TimeRows(gpu, effort, options.row_options,
                                          limits, save, &table["rows"]);
      report.FailIf(n_failed != 0, fmt::format("{} rows failed", n_failed));
    });
  }
  save();
  fmt::print("{} passed, {} failed, {} skipped\n", report.n_passed(),
             report.n_failed(), report.n_skipped());
  return report.n_failed() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Tests and times kvevict on a GPU."};
  app.add_option("--libcuda", o.libraries.libcuda, "the driver's library");
  app.add_option("--libnvrtc", o.libraries.libnvrtc, "the compiler's library");
  app.add_option("--kernel-cache", o.libraries.kernel_cache_dir,
                 "folder for compiled kernels");
  app.add_option("--seed", o.seed,
                 "of all random data; without it a fresh one");
  app.add_option("--json", o.json, "file for one JSON document");
  app.add_flag("--list", o.list, "prints the parts of the checks, no more");
  app.add_option("--only", o.only, "one part of the checks")
      ->check(CLI::IsMember(PartNames()));
  app.add_flag("--small", o.small, "shapes for an interpreter of kernels");
  app.add_flag("--no-checks", o.no_checks, "only says which GPU there is");
  app.add_option(
      "--rows", o.row_options.named,
      "only the table of timings, rows with this in their group or name; "
      "\"\" for all");
  app.add_option("--against", o.row_options.against,
                 "a libkvevict.so whose calls take turns with this program's");
  app.add_option("--seconds", o.row_options.seconds,
                 "of --rows: none begins later");
  CLI11_PARSE(app, argc, argv);
  o.rows = app.count("--rows") != 0;
  if (o.rows) o.no_checks = true;
  if (o.list) {
    for (const Part& part : kParts) fmt::print("{}\n", part.name);
    return 0;
  }
  try {
    return Run(o);
  } catch (const std::exception& e) {
    fmt::print(stderr, "kvevict_gpu_test: {}\n", e.what());
    return 1;
  }
}
