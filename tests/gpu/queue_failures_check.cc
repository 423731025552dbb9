// Anything that an eviction queues may fail to be queued.
#include <fmt/format.h>

#include <string_view>

#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/model.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

constexpr uint32_t kTokensHeld = 120;
constexpr int kErrorUnknown = 999;

Shape SmallShape() {
  return {"",
          2,
          4,
          2,
          32,
          kTokensHeld,
          KVEVICT_DTYPE_BF16,
          KVEVICT_DTYPE_BF16,
          Layout::kTokenMajor};
}

// Fails the n-th call of a function, for every n that an eviction reaches.
// After a reset the sequence goes on as if nothing had happened.
void FailEachCall(const Gpu& gpu, bool select_on_host, const char* function,
                  Report* report) {
  Twin twin(gpu, SmallShape(), 1);
  kvevict_context_options options = gpu.ContextOptions();
  options.select_on_host = select_on_host;
  Side side(&gpu, &twin, "snapkv:budget=60,scope=layer,window=16", &options);
  Check(kvevict_context_prepare(side.context(), side.plan()));
  const Buffer workspace(gpu,
                         WorkspaceBytes(side.plan(), KVEVICT_OPERATION_EVICT));
  const std::string_view symbol = function;
  const std::string_view name = symbol.substr(0, symbol.find("_v2"));
  std::vector<int32_t> expected;
  for (uint64_t n = 0;; ++n) {  // 0: none fails
    twin.Restore();
    side.Prefill(0, kTokensHeld, 50);
    gpu.Synchronize();
    if (n > 0) mock::FailCall(function, n, kErrorUnknown);
    const kvevict_status status = kvevict_sequence_evict(
        side.sequence(), twin.device_views().data(), twin.device_views().size(),
        nullptr, workspace.pointer<void>(), workspace.n_bytes(), side.stream());
    const std::string_view message = kvevict_last_error_message();
    mock::ForgetFailures();
    if (status == KVEVICT_OK) {
      if (n == 0) expected = side.Positions(1, 0);
      report->FailIf(side.Positions(1, 0) != expected,
                     "other survivors after a failure");
      if (n > 0) {
        report->FailIf(n == 1, "nothing failed");
        report->Note("calls that failed", static_cast<double>(n - 1));
        break;
      }
    } else {
      report->FailIf(status != KVEVICT_ERROR_DEVICE ||
                         message.find(name) == std::string_view::npos ||
                         message.find("(999)") == std::string_view::npos,
                     fmt::format("{} number {}: {}: {}", function, n,
                                 kvevict_status_name(status), message));
      report->FailIf(ReportOf(side.sequence()).tokens_before != 0,
                     "a report was written");
    }
    gpu.Synchronize();
    Check(kvevict_sequence_reset(side.sequence(), side.stream()));
  }
  mock::ClearProblems();
}

}  // namespace

void CheckQueueFailures(const Gpu& gpu, const Effort&, Report* report) {
  for (const char* function : {"cuLaunchKernel", "cuMemsetD8Async"}) {
    report->Check(fmt::format("an eviction's calls of {} fail", function),
                  [&] { FailEachCall(gpu, false, function, report); });
  }
  for (const char* function : {"cuLaunchKernel", "cuMemcpyDtoHAsync_v2",
                               "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"}) {
    report->Check(
        fmt::format("selecting on the host, calls of {} fail", function),
        [&] { FailEachCall(gpu, true, function, report); });
  }
}

}  // namespace kvevict::gpu
