// The GPU program's checks without a GPU: the library's own loader, NVRTC,
// launches and error paths, with the mock driver in the driver's place. It
// claims to be newer than every NVRTC, so that the library gives it PTX.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/gpu/checks.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/mutants.h"
#include "tests/gpu/rows.h"
#include "tests/paths.h"
#include "tests/rig/mock/mock.h"
#include "tests/rig/nvrtcs.h"

namespace {

using namespace kvevict;       // NOLINT: a program
using namespace kvevict::gpu;  // NOLINT

constexpr int kNewerThanAnyNvrtc = 999;

// Every row of the table runs, tiny: none is tried first on a GPU. With `against`
// the shared library takes turns with this program.
void RunRows(const Gpu& gpu, const Effort& effort,
             const rows::RowOptions& options, Report* report) {
  report->Check("rows of " + options.named, [&] {
    nlohmann::json timed;
    size_t n_saved = 0;
    TimeRows(
        gpu, effort, options, {1, 1}, [&] { ++n_saved; }, &timed);
    report->FailIf(
        timed.empty() || n_saved != timed.size(),
        fmt::format("{} rows, saved {} times", timed.size(), n_saved));
    for (const nlohmann::json& row : timed) {
      report->FailIf(!row.contains("ms"), row.dump());
      report->FailIf(row.contains("ratio") == options.against.empty(),
                     row.dump());
    }
  });
}

// A row that has no time, no memory, or fails keeps no other from running.
void RunRowsThatFail(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("rows that cannot run say why", [&] {
    nlohmann::json timed;
    const auto run = [&](const rows::RowOptions& options) {
      return rows::TimeRows(
          gpu, effort, options, {1, 1}, [] {}, &timed);
    };
    report->FailIf(run({"machine", "", 1e-9}) != 0, "a skipped row failed");
    for (const nlohmann::json& row : timed) {
      report->FailIf(row.value("skipped", "") != "no time left", row.dump());
    }
    mock::FailCall("cuLaunchKernel", 1, 1);
    report->FailIf(run({"machine", "", 0}) != 1, "no row failed, or several");
    report->FailIf(!timed[0].contains("failed"), timed[0].dump());
    report->FailIf(!timed[1].contains("ms"), timed[1].dump());
  });
}

// The calls of an eviction of the first user's ring, and of decoding around it.
constexpr const char* kChain[] = {
    "observe_rows",  "advance_counts",   "window_lse",    "window_scores",
    "pool_rows",     "pool_select",      "select_topk",   "make_keys",
    "pin_positions", "gather_chunks_16", "map_positions", "set_lengths"};

void CheckLaunches(const Gpu& gpu, const Effort& effort, Report* report) {
  const uint64_t before = mock::Launches("");
  CheckPolicyNone(gpu, effort, report);
  report->Check("policy none launches nothing", [&] {
    report->FailIf(mock::Launches("") != before, "a kernel has run");
  });
  CheckAcceptance(gpu, effort, report);
  report->Check("every kernel of the chain has run", [&] {
    for (const char* kernel : kChain) {
      report->FailIf(mock::Launches(kernel) == 0, kernel);
    }
  });
}

// These parts come on top of the GPU program's.
constexpr Part kMockParts[] = {
    {"launches", CheckLaunches},
    {"moved_rows", CheckMovedRows},
    {"driver_use", CheckDriverUse},
    {"query_rows", CheckQueryRows},
    {"launch_parts", CheckLaunchParts},
    {"capture_use", CheckCaptureUse},
    {"contexts", CheckContexts},
    {"lost_contexts", CheckLostContexts},
    {"prepared", CheckPrepared},
    {"queue_failures", CheckQueueFailures},
    {"driver_failures", CheckDriverFailures},
    {"rows_failures", RunRowsThatFail},
    {"rows_against",
     [](const Gpu& gpu, const Effort& effort, Report* report) {
       RunRows(gpu, effort, {"knorm, 16384", test_library, 0}, report);
       RunRows(gpu, effort, {"bf16, 1 queries", test_library, 0}, report);
     }},
#define KVEVICT_ROWS(group)                                              \
  {                                                                      \
    "rows_" group, [](const Gpu& gpu, const Effort& effort, Report* r) { \
      RunRows(gpu, effort, {group ": ", "", 0}, r);                      \
    }                                                                    \
  }
    KVEVICT_ROWS("machine"),
    KVEVICT_ROWS("scores"),
    KVEVICT_ROWS("evictions"),
    KVEVICT_ROWS("observations"),
    KVEVICT_ROWS("moves"),
    KVEVICT_ROWS("attention"),
    KVEVICT_ROWS("green"),
#undef KVEVICT_ROWS
};

uint64_t Seed() {
  const char* const text = std::getenv("KVEVICT_TEST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// Reports the problems that the mock noticed.
void ExpectNoProblems(Report* report) {
  report->Check("no misuse of the driver, no leak", [&] {
    for (const std::string& problem : mock::Problems()) report->Fail(problem);
    for (const std::string& leak : mock::Leaks()) report->Fail(leak);
  });
}

// Those in which every kernel runs and failures are not meant.
constexpr std::string_view kPartsForMutants[] = {
    "scores",      "attention", "moves",   "lives", "near_keys",
    "calibration", "evictions", "batches", "pages"};

// Those that need the process's own memory.
constexpr std::string_view kPartsOfCases[] = {
    "mutants", "scores", "attention",   "moves",
    "lives",   "pages",  "calibration", "batches"};

struct Options {
  std::string part;
  bool by_oldest = false;  // libnvrtc here, otherwise by the newest
  bool before_80 = false;  // a GPU older than sm_80
  const rig::TensorCore* tensor_core = &rig::kToNearest;
  bool with_mutants = false;
  uint32_t times = 1;

  bool Has(std::string_view name) const {
    return part == name || (part == "mutants" &&
                            std::ranges::count(kPartsForMutants, name) > 0);
  }
};

int Run(const Options& options) {
  const std::vector<const cuda::Nvrtc*> nvrtcs =
      options.before_80 ? cuda::FindNvrtcsFor(70) : cuda::FindNvrtcs();
  if (nvrtcs.empty()) {
    fmt::print("skipped: no libnvrtc on this machine\n");
    return 77;
  }
  const cuda::Nvrtc& nvrtc =
      options.by_oldest ? *nvrtcs.back() : *nvrtcs.front();
  mock::Settings settings;
  settings.driver_version = std::max(settings.driver_version, nvrtc.version());
  settings.compute_capability = options.before_80 ? 71 : kNewerThanAnyNvrtc;
  settings.host_memory = std::ranges::count(kPartsOfCases, options.part) > 0;
  settings.tensor_core = *options.tensor_core;
  if (options.with_mutants) {
    settings.instead_of = [](const std::string& ptx) {
      return ptx::TryMutants(ptx, "");
    };
  }
  mock::Reset(settings);
  Report report(/*ends_at_failure=*/options.with_mutants);
  // Each check makes a context of its own. All of them, in this process and in
  // others, compile a variant once.
  {
    const Gpu gpu({test_mock_cuda, nvrtc.name(), test_kernel_cache});
    const Effort effort = {false, Seed(), 3, options.times};
    const auto run = [&](const Part& p) {
      if (options.Has(p.name)) p.run(gpu, effort, &report);
    };
    std::for_each(std::begin(kParts), std::end(kParts), run);
    std::for_each(std::begin(kMockParts), std::end(kMockParts), run);
  }
  ExpectNoProblems(&report);
  fmt::print("{} passed, {} failed\n", report.n_passed(), report.n_failed());
  const bool passed = report.n_failed() == 0 && report.n_passed() > 1;
  return passed && (!options.with_mutants || ptx::AllMutantsWereNoticed()) ? 0
                                                                           : 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Every launch takes megabytes and frees them. They are kept for the next one.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  Options options;
  CLI::App app{"The GPU program's checks on the mock driver."};
  app.add_option("part", options.part, "a part, or \"mutants\" for many")
      ->required();
  app.add_flag("--oldest", options.by_oldest, "by the oldest libnvrtc here");
  app.add_flag("--before-80", options.before_80, "as a GPU older than sm_80");
  app.add_option("--times", options.times, "as many random cases");
  std::string core;
  app.add_option("--tensor-core", core, "how products are rounded");
  std::vector<uint64_t> shares;
  app.add_option("--mutants", shares,
                 "tries this part of as many of the kernels' mutants")
      ->expected(2);
  CLI11_PARSE(app, argc, argv);
  for (const rig::TensorCore& known : rig::kTensorCores) {
    if (core == known.name) options.tensor_core = &known;
  }
  if (!shares.empty()) {
    options.with_mutants = true;
    ptx::TryOnlyPart(shares[0], shares[1]);
  }
  return Run(options);
}
