// The first user's prompt with the library's own launches, and the kernels as C++
// on fibers: no GPU, no NVRTC. Under every schedule.
#include <fmt/format.h>

#include <string_view>

#include "tests/cuda/shim/shim.h"
#include "tests/gpu/checks.h"
#include "tests/simt/run.h"

namespace {

using namespace kvevict;       // NOLINT: a program
using namespace kvevict::gpu;  // NOLINT

constexpr Effort kSmall = {false, 1, 1};

// What an eviction of such a ring takes, and decoding before and after it.
constexpr const char* kChain[] = {
    "capture_rows",     "advance_lengths", "window_lse", "window_scores",
    "pool_rows",        "select_topk",     "make_keys",  "pin_positions",
    "gather_chunks_16", "map_positions",   "set_lengths"};

void ExpectChain(Report* report) {
  report->Check("every kernel of the chain has run", [&] {
    for (const char* kernel : kChain) {
      report->FailIf(shim::Launches(kernel) == 0, kernel);
    }
  });
}

void ExpectNoLeaks(Report* report) {
  report->Check("nothing is left on the device", [&] {
    report->FailIf(shim::Leaks() != 0, fmt::format("{}", shim::Leaks()));
  });
}

void ExpectNothingForNone(const Gpu& gpu, Report* report) {
  const uint64_t before = shim::Launches("");
  CheckPolicyNone(gpu, kSmall, report);
  report->Check("policy none launches nothing", [&] {
    report->FailIf(shim::Launches("") != before, "a kernel has run");
  });
}

// More than one block: gather_rows has blocks that wait for others.
Gpu ShimUnder(simt::Policy policy) {
  fmt::print("schedule {}, seed {}\n", static_cast<int>(policy), simt::Seed());
  shim::Schedule({policy, simt::Seed(), 4});
  return Gpu({KVEVICT_SHIM_CUDA, KVEVICT_FAKES_DIR "/libfake_nvrtc_12.so", ""});
}

void RunFull(Report* report) {
  const Gpu gpu = ShimUnder(simt::kPolicies[0]);
  CheckAcceptance(gpu, {true, simt::Seed(), 1}, report);
}

void RunSmall(Report* report) {
  for (const simt::Policy policy : simt::kPolicies) {
    const Gpu gpu = ShimUnder(policy);
    CheckAcceptance(gpu, kSmall, report);
    ExpectNothingForNone(gpu, report);
  }
  ExpectChain(report);
}

}  // namespace

// "full": the first user's own size, under one schedule, in minutes.
int main(int argc, char** argv) {
  Report report;
  if (argc > 1 && std::string_view(argv[1]) == "full") {
    RunFull(&report);
  } else {
    RunSmall(&report);
  }
  ExpectNoLeaks(&report);
  fmt::print("{} passed, {} failed\n", report.n_passed(), report.n_failed());
  return report.n_failed() == 0 ? 0 : 1;
}
