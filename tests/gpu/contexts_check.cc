#include <fmt/format.h>

#include <functional>
#include <memory>
#include <thread>

#include "kvevict/experimental.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/other_context.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

using cuda::CUcontext;

constexpr int kUnknown = 999;

CUcontext Current(const Gpu& gpu) {
  CUcontext context = nullptr;
  Check(gpu.driver(), gpu.driver().cuCtxGetCurrent(&context),
        "cuCtxGetCurrent");
  return context;
}

// ---- Two contexts ----

// Work that alternates between both contexts, with the second one current all
// the time, gives the bytes that one context gives.
void CheckTwoContexts(const Gpu& gpu, Report* report) {
  Evictable a(gpu);
  const OtherContext other(gpu);
  Evictable b(other.gpu());
  const CUcontext current = Current(gpu);
  const auto done = [&](const char* what) {
    report->FailIf(Current(gpu) != current,
                   fmt::format("another context is current after {}", what));
  };
  for (Evictable* e : {&a, &b}) {
    e->side.Prefill(0, 120, 120);
    done("capturing");
  }
  for (const Evictable* e : {&a, &b}) {
    Check(e->Evict());
    done("evicting");
  }
  ExpectSamePositions(a.side, b.side, a.twin, report);
  done("reading positions");
  { const Side short_lived(std::move(b.side)); }
  done("destroying");
}

// The context that was current is current again, whatever fails.
void CheckFailuresRestoreContext(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  e.side.Prefill(0, 120, 120);
  Check(e.Evict());
  e.side.Prefill(120, 20, 20);
  const kvevict_context_options options = gpu.ContextOptions();
  const auto make_context = [&] {
    kvevict_context* context = nullptr;
    return kvevict_context_create(&options, &context);
  };
  const auto make_and_prepare = [&] {
    const ContextHandle context = CreateContext(options);
    return kvevict_context_prepare(context.get(), nullptr);
  };
  const auto make_sequence = [&] {
    kvevict_sequence* sequence = nullptr;
    return kvevict_sequence_create(e.side.plan(), &sequence);
  };
  const auto read_position = [&] {
    int32_t position = 0;
    return kvevict_sequence_position_of_slot(e.side.sequence(), 0, 0, 0,
                                             &position);
  };
  const auto evict = [&] { return e.Evict(); };
  const struct {
    const char* function;
    std::function<kvevict_status()> call;
  } cases[] = {
      {"cuCtxGetDevice", make_context},
      {"cuStreamCreate", make_context},
      {"cuLibraryLoadData", make_and_prepare},
      {"cuLibraryGetKernel", make_and_prepare},
      {"cuKernelGetFunction", make_and_prepare},
      {"cuFuncLoad", make_and_prepare},
      {"cuMemAlloc_v2", make_sequence},
      {"cuMemsetD8Async", make_sequence},
      {"cuStreamSynchronize", make_sequence},
      {"cuStreamIsCapturing", read_position},
      {"cuMemcpyDtoHAsync_v2", read_position},
      {"cuStreamSynchronize", read_position},
      {"cuCtxPushCurrent_v2", evict},
      {"cuStreamIsCapturing", evict},
      {"cuLaunchKernel", evict},
  };
  const OtherContext other(gpu);
  for (const auto& [function, call] : cases) {
    const CUcontext current = Current(gpu);
    mock::FailCall(function, 1, kUnknown);
    ExpectFailure(call(), KVEVICT_ERROR_DEVICE, {"CUDA_ERROR_UNKNOWN"}, report);
    report->FailIf(
        Current(gpu) != current,
        fmt::format("{} fails: another context is current now", function));
    mock::ForgetFailures();
  }
  Check(e.Evict());
}

// ---- Threads ----

// Serves a request on a stream of its own in a thread without a current context.
void Serve(const Twin& twin, const kvevict_plan* plan, const Buffer& workspace,
           cuda::CUstream stream, std::vector<int32_t>* positions) {
  const uint32_t n = twin.shape().n_tokens;
  const SequenceHandle sequence = CreateSequence(plan);
  for (uint32_t l = 0; l < twin.shape().n_layers; ++l) {
    const kvevict_plane queries = twin.DeviceQueries(l, 0);
    Check(Observe(sequence.get(), {l, &queries}, n, 0, stream));
  }
  Check(kvevict_sequence_append(sequence.get(), n, stream));
  Check(kvevict_sequence_evict(
      sequence.get(), twin.device_views().data(), twin.device_views().size(),
      nullptr, workspace.pointer<void>(), workspace.n_bytes(), stream));
  positions->resize(60);
  size_t len = 0;
  Check(kvevict_sequence_keep_positions(sequence.get(), 1, 1, positions->data(),
                                        positions->size(), &len));
}

// Nothing is prepared, so the threads also compile at the same time.
void CheckTwoThreads(const Gpu& gpu, Report* report) {
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const PlanHandle plan =
      CreatePlan(context.get(), GeometryOf(SmallShape()), ParsePolicy(kPolicy));
  const size_t n_bytes = WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT);
  struct Request {
    Twin twin;
    Buffer workspace;
    cuda::CUstream stream = nullptr;
    std::vector<int32_t> positions = {};
    std::string failure = {};
  };
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int i = 0; i < 2; ++i) {
    requests.emplace_back(
        new Request{Twin(gpu, SmallShape(), 1), Buffer(gpu, n_bytes)});
    Check(gpu.driver(),
          gpu.driver().cuStreamCreate(&requests.back()->stream,
                                      cuda::CU_STREAM_NON_BLOCKING),
          "cuStreamCreate");
  }
  for (const auto& request : requests) {
    threads.emplace_back([&plan, r = request.get()] {
      try {
        Serve(r->twin, plan.get(), r->workspace, r->stream, &r->positions);
      } catch (const std::exception& e) {
        r->failure = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Evictable alone(gpu);
  alone.side.Prefill(0, 120, 120);
  Check(alone.Evict());
  const std::vector<int32_t> expected = alone.side.Positions(1, 1);
  for (const auto& request : requests) {
    report->Expect(request->failure);
    report->FailIf(request->positions != expected, "a thread keeps others");
    (void)gpu.driver().cuStreamDestroy(request->stream);
  }
}

}  // namespace

void CheckContexts(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("two contexts do not mix",
                [&] { CheckTwoContexts(gpu, report); });
  report->Check("failing calls leave the context as it was",
                [&] { CheckFailuresRestoreContext(gpu, report); });
  report->Check("two threads with a stream each",
                [&] { CheckTwoThreads(gpu, report); });
}

}  // namespace kvevict::gpu
