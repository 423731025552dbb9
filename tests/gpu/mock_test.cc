// The GPU program's checks without a GPU: the library's own loader, NVRTC,
// launches and error paths, with the mock driver in the driver's place. It
// claims to be newer than every NVRTC, so that the library gives it PTX.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/gpu/checks.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/timings.h"
#include "tests/paths.h"
#include "tests/rig/mock/mock.h"
#include "tests/rig/nvrtcs.h"

namespace {

using namespace kvevict;       // NOLINT: a program
using namespace kvevict::gpu;  // NOLINT

constexpr int kNewerThanAnyNvrtc = 999;

// These parts come on top of the GPU program's.
constexpr Part kMockParts[] = {
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
    {"timings",
     [](const Gpu& gpu, const Effort& effort, Report* report) {
       report->Check("timings", [&] {
         nlohmann::json rows;
         int n_saved = 0;
         TimeKernels(
             gpu, effort, "", [&] { ++n_saved; }, &rows);
         report->FailIf(rows["rows"].size() != 43 || n_saved != 6,
                        fmt::format("{} rows, saved {} times",
                                    rows["rows"].size(), n_saved));
       });
     }},
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

// The newest libnvrtc here compiles the kernels, or the oldest.
int Run(const std::string& part, bool by_oldest) {
  const std::vector<const cuda::Nvrtc*> nvrtcs = cuda::FindNvrtcs();
  if (nvrtcs.empty()) {
    fmt::print("skipped: no libnvrtc on this machine\n");
    return 77;
  }
  const cuda::Nvrtc& nvrtc = by_oldest ? *nvrtcs.back() : *nvrtcs.front();
  mock::Settings settings;
  settings.driver_version = std::max(settings.driver_version, nvrtc.version());
  settings.compute_capability = kNewerThanAnyNvrtc;
  settings.count_traffic = false;
  mock::Reset(settings);
  Report report;
  // Each check makes a context of its own. All of them, in this process and in
  // others, compile a variant once.
  {
    const Gpu gpu({test_mock_cuda, nvrtc.name(), test_kernel_cache});
    const auto run = [&](const Part& p) {
      if (part == p.name) p.run(gpu, {false, Seed(), 3}, &report);
    };
    std::for_each(std::begin(kParts), std::end(kParts), run);
    std::for_each(std::begin(kMockParts), std::end(kMockParts), run);
  }
  ExpectNoProblems(&report);
  fmt::print("{} passed, {} failed\n", report.n_passed(), report.n_failed());
  return report.n_failed() == 0 && report.n_passed() > 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool by_oldest = argc == 3 && std::string_view(argv[2]) == "oldest";
  if (argc != (by_oldest ? 3 : 2)) {
    fmt::print(stderr, "usage: {} PART [oldest]\n", argv[0]);
    return 2;
  }
  return Run(argv[1], by_oldest);
}
