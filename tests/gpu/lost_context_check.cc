#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <functional>

#include "kvevict/experimental.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/other_context.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

constexpr int kIllegalAddress = 700;

struct HostBytes {
  std::atomic<int64_t> n = 0;

  void Count(kvevict_context_options* options) {
    options->alloc = [](size_t n_bytes, size_t alignment, void* self) {
      static_cast<HostBytes*>(self)->n += static_cast<int64_t>(n_bytes);
      return std::aligned_alloc(alignment,
                                (n_bytes + alignment - 1) & ~(alignment - 1));
    };
    options->free = [](void* memory, size_t n_bytes, size_t, void* self) {
      static_cast<HostBytes*>(self)->n -= static_cast<int64_t>(n_bytes);
      std::free(memory);
    };
    options->alloc_user_data = this;
  }
};

std::string Leaks() {
  std::string all;
  for (const std::string& leak : mock::Leaks()) all += leak + "; ";
  return all;
}

// Simulates a fault of the caller's kernel that comes to light in `function`.
void LoseContext(const Gpu& gpu, const char* function, Report* report) {
  const std::string before = Leaks();
  HostBytes bytes;
  {
    const OtherContext other(gpu);
    kvevict_context_options options = other.gpu().ContextOptions();
    bytes.Count(&options);
    Evictable e(other.gpu(), &options);
    Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
    e.side.Prefill(0, 120, 120);
    Check(e.Evict());
    e.side.Prefill(120, 20, 20);
    int32_t position = 0;
    const std::function<kvevict_status()> calls[] = {
        [&] { return e.Evict(); },
        [&] {
          return kvevict_sequence_position_of_slot(e.side.sequence(), 0, 0, 0,
                                                   &position);
        },
        [&] {
          return kvevict_sequence_append(e.side.sequence(), 1, e.side.stream());
        },
        [&] {
          return kvevict_sequence_reset(e.side.sequence(), e.side.stream());
        },
        [&] {
          kvevict_sequence* sequence = nullptr;
          return kvevict_sequence_create(e.side.plan(), &sequence);
        },
    };
    mock::FailCall(function, 1, kIllegalAddress);
    bool lost = false;
    for (const auto& call : calls) {
      const kvevict_status status = call();
      if (!lost && status == KVEVICT_OK) continue;  // not this one
      lost = true;
      ExpectFailure(status, KVEVICT_ERROR_DEVICE,
                    {"CUDA_ERROR_ILLEGAL_ADDRESS", "context lost"}, report);
    }
    report->FailIf(!lost, fmt::format("nothing calls {}", function));
    mock::ForgetFailures();
  }
  report->FailIf(bytes.n != 0, fmt::format("{} bytes leak", bytes.n.load()));
  report->FailIf(Leaks() != before, fmt::format("{}: left {}, before {}",
                                                function, Leaks(), before));
}

void CheckFaults(const Gpu& gpu, Report* report) {
  for (const char* function :
       {"cuLaunchKernel", "cuStreamIsCapturing", "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize", "cuMemAlloc_v2", "cuMemsetD8Async"}) {
    LoseContext(gpu, function, report);
  }
}

// The CUcontext is destroyed before what was made in it.
void CheckDestroyedContext(const Gpu& gpu, Report* report) {
  const std::string before = Leaks();
  HostBytes bytes;
  ContextHandle context;
  PlanHandle plan;
  SequenceHandle sequence;
  {
    const OtherContext other(gpu);
    kvevict_context_options options = other.gpu().ContextOptions();
    bytes.Count(&options);
    context = CreateContext(options);
    plan = CreatePlan(context.get(), GeometryOf(SmallShape()),
                      ParsePolicy(kPolicy));
    Check(kvevict_context_prepare(context.get(), plan.get()));
    sequence = CreateSequence(plan.get());
  }
  ExpectFailure(kvevict_sequence_append(sequence.get(), 1, nullptr),
                KVEVICT_ERROR_DEVICE, {"CUDA_ERROR_INVALID_CONTEXT"}, report);
  sequence = SequenceHandle();
  plan = PlanHandle();
  context = ContextHandle();
  mock::ClearProblems();  // a handle of a destroyed context was used
  report->FailIf(bytes.n != 0, fmt::format("{} bytes leak", bytes.n.load()));
  report->FailIf(Leaks() != before,
                 fmt::format("left {}, before {}", Leaks(), before));
}

}  // namespace

void CheckLostContexts(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("lost contexts leave nothing behind",
                [&] { CheckFaults(gpu, report); });
  report->Check("destroyed contexts leave nothing behind",
                [&] { CheckDestroyedContext(gpu, report); });
}

}  // namespace kvevict::gpu
