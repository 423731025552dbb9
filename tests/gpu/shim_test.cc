// The GPU program's checks with the library's own launches and the kernels as
// C++ on fibers: no GPU, no NVRTC. Uses one schedule, or all.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tests/gpu/checks.h"
#include "tests/paths.h"
#include "tests/rig/shim/shim.h"
#include "tests/rig/simt/run.h"

namespace {

using namespace kvevict;       // NOLINT: a program
using namespace kvevict::gpu;  // NOLINT

// There is more than one block: gather_rows has blocks that wait for others.
Gpu ShimUnder(simt::Policy policy) {
  fmt::print("schedule {}, seed {}\n", static_cast<int>(policy), simt::Seed());
  shim::Schedule({policy, simt::Seed(), 4});
  return Gpu({KVEVICT_SHIM_CUDA,
              test_fakes_dir + std::string("/libfake_nvrtc_12.so"), ""});
}

// The calls of an eviction of the first user's ring, and of decoding around it.
constexpr const char* kChain[] = {
    "observe_rows",  "advance_counts",   "window_lse",    "window_scores",
    "pool_rows",     "pool_select",      "select_topk",   "make_keys",
    "pin_positions", "gather_chunks_16", "map_positions", "set_lengths"};

std::vector<uint64_t> ChainLaunches() {
  std::vector<uint64_t> launches;
  for (const char* kernel : kChain) launches.push_back(shim::Launches(kernel));
  return launches;
}

void ExpectChain(const std::vector<uint64_t>& before, Report* report) {
  report->Check("every kernel of the chain has run", [&] {
    const std::vector<uint64_t> now = ChainLaunches();
    for (size_t i = 0; i < now.size(); ++i) {
      report->FailIf(now[i] == before[i], kChain[i]);
    }
  });
}

void ExpectNothingForNone(const Gpu& gpu, const Effort& effort,
                          Report* report) {
  const uint64_t before = shim::Launches("");
  CheckPolicyNone(gpu, effort, report);
  report->Check("policy none launches nothing", [&] {
    report->FailIf(shim::Launches("") != before, "a kernel has run");
  });
}

void ExpectNoLeaks(Report* report) {
  report->Check("nothing is left on the device", [&] {
    report->FailIf(shim::Leaks() != 0, fmt::format("{}", shim::Leaks()));
  });
}

void RunPart(const Part& part, const Gpu& gpu, bool full, Report* report) {
  const Effort effort = {full, simt::Seed(), 2};
  const std::vector<uint64_t> before = ChainLaunches();
  part.run(gpu, effort, report);
  if (part.run == CheckAcceptance) {
    ExpectChain(before, report);
    ExpectNothingForNone(gpu, effort, report);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool full = false;
  bool all_schedules = false;
  std::string only;
  CLI::App app{"The checks of the GPU program on fibers."};
  app.add_flag("--full", full, "shapes for a GPU, under one schedule: minutes");
  app.add_flag("--all-schedules", all_schedules, "not the first alone");
  app.add_option("--only", only, "one part of the checks")
      ->check(CLI::IsMember(PartNames()));
  CLI11_PARSE(app, argc, argv);

  Report report;
  for (const simt::Policy policy : simt::kPolicies) {
    const Gpu gpu = ShimUnder(policy);
    for (const Part& part : kParts) {
      if (only.empty() || only == part.name) {
        RunPart(part, gpu, full, &report);
      }
    }
    if (full || !all_schedules) break;
  }
  ExpectNoLeaks(&report);
  fmt::print("{} passed, {} failed\n", report.n_passed(), report.n_failed());
  return report.n_failed() == 0 ? 0 : 1;
}
