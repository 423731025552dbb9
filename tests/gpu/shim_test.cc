// The first user's prompt with the library's own launches, and the kernels as C++
// on fibers: no GPU, no NVRTC. Under every schedule.
#include <fmt/format.h>

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

}  // namespace

int main() {
  Report report;
  for (const simt::Policy policy : simt::kPolicies) {
    fmt::print("schedule {}, seed {}\n", static_cast<int>(policy),
               simt::Seed());
    // More than one block: gather_rows has blocks that wait for others.
    shim::Schedule({policy, simt::Seed(), 4});
    const Gpu gpu(
        {KVEVICT_SHIM_CUDA, KVEVICT_FAKES_DIR "/libfake_nvrtc_12.so", ""});
    CheckAcceptance(gpu, kSmall, &report);
    ExpectNothingForNone(gpu, &report);
  }
  ExpectChain(&report);
  ExpectNoLeaks(&report);
  fmt::print("{} passed, {} failed\n", report.n_passed(), report.n_failed());
  return report.n_failed() == 0 ? 0 : 1;
}
