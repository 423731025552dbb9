#include "tests/gpu/driver_use_check.h"

#include <fmt/format.h>

#include <thread>

#include "kvevict/batch.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/evictable.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

// Making handles may call these, using them may not.
constexpr const char* kNotWhileExecuting[] = {
    "cuMemAlloc_v2", "cuMemFree_v2", "cuModuleLoadData", "cuLibraryLoadData",
    "cuFuncSetAttribute"};

uint64_t CallsNotWhileExecuting() {
  uint64_t n = mock::Waits();
  for (const char* function : kNotWhileExecuting) n += mock::Calls(function);
  return n;
}

void CheckExecutionIsQuiet(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  const uint64_t before = CallsNotWhileExecuting();
  e.side.Prefill(0, 120, 50);
  Check(e.Evict());
  e.side.Prefill(120, 3, 1);
  Check(kvevict_sequence_reset(e.side.sequence(), e.side.stream()));
  report->FailIf(CallsNotWhileExecuting() != before,
                 "an executing call waited, allocated or loaded code");
  gpu.Synchronize();
}

void CheckNothingForNone(const Gpu& gpu, Report* report) {
  Twin twin(gpu, SmallShape(), 1);
  Side side(&gpu, &twin, "none");
  const uint64_t launches = mock::Calls("cuLaunchKernel");
  side.Prefill(0, 120, 7);
  const kvevict_evict_report evicted = side.Evict();
  Check(kvevict_sequence_reset(side.sequence(), side.stream()));
  report->FailIf(evicted.evicted != 0, "something was evicted");
  report->FailIf(mock::Calls("cuLaunchKernel") != launches,
                 "something was launched");
}

void CheckContextIsRestored(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  const auto current = [&] {
    cuda::CUcontext context = nullptr;
    Check(gpu.driver(), gpu.driver().cuCtxGetCurrent(&context),
          "cuCtxGetCurrent");
    return context;
  };
  const cuda::CUcontext before = current();
  e.side.Prefill(0, 120, 50);
  report->FailIf(current() != before, "another context is current");
  // The thread has no current context.
  kvevict_status status = KVEVICT_ERROR_INTERNAL;
  bool none_before = false;
  bool none_after = false;
  std::thread([&] {
    none_before = current() == nullptr;
    status = e.Evict();
    none_after = current() == nullptr;
  }).join();
  report->FailIf(status != KVEVICT_OK, "evicting on another thread fails");
  report->FailIf(!none_before || !none_after,
                 "a thread without a context has one now");
  gpu.Synchronize();
}

void CheckCaptureWantsPreparing(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  const kvevict_plane queries = e.twin.DeviceQueries(0, 0);
  kvevict_status status = KVEVICT_OK;
  std::string message;
  const auto capture = [&] {
    const Graph graph(gpu, [&] {
      status = Observe(e.side.sequence(), {0, &queries}, 1,
                       KVEVICT_POSITION_NEXT, gpu.stream());
    });
    gpu.Synchronize();
  };
  capture();
  ExpectFailure(status, KVEVICT_ERROR_UNSUPPORTED, {"capture"}, report);
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  capture();
  report->FailIf(status != KVEVICT_OK, "capturing fails after preparing");
}

// Log-sum-exps are observed, or come with the eviction.
void CheckLseSavesAPass(const Gpu& gpu, bool observed, Report* report) {
  Evictable e(gpu);
  e.side.Prefill(0, 120, 50);
  const uint32_t window = e.side.obs_window();
  const std::vector<float> ones(SmallShape().n_q_heads * window, 1.0f);
  const Buffer rows(gpu, ones.size() * sizeof(float));
  rows.Write(ones.data(), rows.n_bytes());
  kvevict_plane plane{};
  plane.data = rows.address();
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  plane.token_stride_bytes = sizeof(float);
  plane.head_stride_bytes = static_cast<int64_t>(window * sizeof(float));
  LayerInputs inputs;
  for (uint32_t l = 0; l < SmallShape().n_layers; ++l) {
    inputs.AddWindow(e.twin.DeviceQueries(l, 120 - window), &plane);
    if (!observed) continue;
    Check(Observe(e.side.sequence(), {l, nullptr, &plane}, window, 120 - window,
                  gpu.stream()));
  }
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  if (!observed) inputs.Lend(&options);
  const uint64_t before = mock::Launches("window_lse");
  Check(e.Evict(&options));
  gpu.Synchronize();
  report->FailIf(mock::Launches("window_lse") != before,
                 "the first pass ran all the same");
  if (!observed) return;
  // Log-sum-exps of older rows cover keys that are gone now.
  e.side.Prefill(120, 3, 1);
  for (uint32_t l = 0; l < SmallShape().n_layers; ++l) {
    Check(
        Observe(e.side.sequence(), {l, nullptr, &plane}, 3, 120, gpu.stream()));
  }
  Check(e.Evict(&options));
  gpu.Synchronize();
  report->FailIf(mock::Launches("window_lse") == before,
                 "log-sum-exps from before an eviction were used after it");
}

// Every head has its list, and nothing else shapes the scores.
void CheckPoolingWithSelection(const Gpu& gpu, Report* report) {
  const auto launches = [&](const char* policy, const char* kernel) {
    Evictable e(gpu, nullptr, policy);
    e.side.Prefill(0, 120, 50);
    const uint64_t before = mock::Launches(kernel);
    Check(e.Evict());
    gpu.Synchronize();
    return mock::Launches(kernel) - before;
  };
  report->FailIf(launches(kPolicy, "pool_rows") != 0, "scores were pooled");
  report->FailIf(launches(kPolicy, "pool_select") != 1, "nothing was selected");
  for (const char* policy :
       {"snapkv:budget=60,scope=layer,window=16",
        "snapkv:budget=60,scope=head,window=16,pool=avg515",
        "snapkv:budget=60,scope=head,window=16,group=max,order=pool-reduce"}) {
    report->FailIf(launches(policy, "pool_rows") != 1,
                   fmt::format("{}: scores were not pooled", policy));
  }
}

void CheckDebugFindsBadLists(const Gpu& gpu, Report* report) {
  kvevict_context_options options = gpu.ContextOptions();
  options.debug = 1;
  Evictable e(gpu, &options);
  for (const std::vector<int32_t>& keep : {std::vector<int32_t>{0, 5, 5, 7},
                                           {0, 5, 4, 7},
                                           {-1, 5, 6, 7},
                                           {0, 5, 6, 120}}) {
    const Buffer lists(gpu, keep.size() * sizeof(int32_t));
    lists.Write(keep.data(), lists.n_bytes());
    const OneMove move(e.twin.device_views()[0], 120, lists.pointer<int32_t>(),
                       keep.size(), 1);
    ExpectFailure(move.Compact(e.side.context(), {nullptr, 0, gpu.stream()}),
                  KVEVICT_ERROR_INVALID_ARGUMENT, {"keep", "n_tokens 120"},
                  report);
  }
  e.twin.Fetch(0);
  report->FailIf(!e.twin.IsUntouched(0), "a byte moved");
}

// ---- Failures ----

// Fails the n-th call of a function while handles are made, for every n until
// nothing fails. Each time the status is right and nothing leaks.
void CheckCreationFailures(const Gpu& gpu, const char* function, int result,
                           kvevict_status expected, const char* word,
                           Report* report) {
  Twin twin(gpu, SmallShape(), 1);
  const Geometry layers = GeometryOf(twin.shape());
  const kvevict_geometry geometry = layers.Borrowed();
  const PolicyHandle policy = HandleOf(ParsePolicy(kPolicy));
  const kvevict_context_options options = gpu.ContextOptions();
  const auto n_allocations = [] {
    std::string all;
    for (const std::string& leak : mock::Leaks()) all += leak + "; ";
    return all;
  };
  const std::string before = n_allocations();
  constexpr uint64_t kEnough = 100;
  for (uint64_t n = 1;; ++n) {
    mock::FailCall(function, n, result);
    kvevict_context* context = nullptr;
    kvevict_plan* plan = nullptr;
    kvevict_sequence* sequence = nullptr;
    kvevict_sequence* fork = nullptr;
    kvevict_status status = kvevict_context_create(&options, &context);
    if (status == KVEVICT_OK) {
      status =
          kvevict_plan_create(context, &geometry, policy.get(), nullptr, &plan);
    }
    if (status == KVEVICT_OK) status = kvevict_context_prepare(context, plan);
    if (status == KVEVICT_OK) status = kvevict_sequence_create(plan, &sequence);
    if (status == KVEVICT_OK) {
      status = kvevict_sequence_begin_observing(sequence, nullptr, 0);
    }
    if (status == KVEVICT_OK) {
      status = kvevict_sequence_fork(sequence, nullptr, &fork, nullptr);
    }
    const std::string message = kvevict_last_error_message();
    const bool failed = status != KVEVICT_OK;
    kvevict_sequence_destroy(fork);
    kvevict_sequence_destroy(sequence);
    kvevict_plan_destroy(plan);
    kvevict_context_destroy(context);
    mock::ForgetFailures();
    if (!failed) {
      report->FailIf(n == 1, fmt::format("no {} fails", function));
      report->Note(fmt::format("calls of {} that failed", function),
                   static_cast<double>(n - 1));
      return;
    }
    report->FailIf(
        status != expected || message.find(word) == std::string::npos,
        fmt::format("{} number {}: {}: {}", function, n,
                    kvevict_status_name(status), message));
    report->FailIf(n_allocations() != before,
                   fmt::format("{} number {} leaves {}, before {}", function, n,
                               n_allocations(), before));
    if (n == kEnough) throw std::runtime_error("it never stops failing");
  }
}

void CheckLaunchFailures(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  e.side.Prefill(0, 120, 50);
  constexpr int kLaunchOutOfResources = 701;
  mock::FailCall("cuLaunchKernel", 1, kLaunchOutOfResources);
  ExpectFailure(e.Evict(), KVEVICT_ERROR_DEVICE,
                {"cuLaunchKernel", "window_lse", "grid",
                 "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
                report);
  report->FailIf(e.side.Stored(0) != 120, "the host counts an eviction");
  Check(e.Evict());  // the next one goes well
  gpu.Synchronize();
  mock::ClearProblems();
}

void CheckDeviceMemoryHooks(const Gpu& gpu, Report* report) {
  struct Count {
    const Gpu* gpu;
    int64_t n_bytes = 0;
    int n_allocs = 0;
  } count{&gpu};
  kvevict_context_options options = gpu.ContextOptions();
  options.device_alloc = [](size_t n_bytes, size_t, void* user_data) {
    auto* c = static_cast<Count*>(user_data);
    cuda::CUdeviceptr memory = 0;
    Check(c->gpu->driver(), c->gpu->driver().cuMemAlloc(&memory, n_bytes),
          "cuMemAlloc");
    c->n_bytes += static_cast<int64_t>(n_bytes);
    ++c->n_allocs;
    return reinterpret_cast<void*>(memory);
  };
  options.device_free = [](void* memory, size_t n_bytes, size_t,
                           void* user_data) {
    auto* c = static_cast<Count*>(user_data);
    c->n_bytes -= static_cast<int64_t>(n_bytes);
    Check(c->gpu->driver(),
          c->gpu->driver().cuMemFree(reinterpret_cast<uintptr_t>(memory)),
          "cuMemFree");
  };
  options.device_alloc_user_data = &count;
  {
    Evictable e(gpu, &options);
    report->FailIf(count.n_allocs == 0, "the hook was not called");
    e.side.Prefill(0, 120, 50);
    Check(e.Evict());
    gpu.Synchronize();
  }
  report->FailIf(count.n_bytes != 0,
                 fmt::format("{} bytes were not freed", count.n_bytes));
  options.device_alloc = [](size_t, size_t, void*) -> void* { return nullptr; };
  const ContextHandle context = CreateContext(options);
  const PlanHandle plan =
      CreatePlan(context.get(), GeometryOf(SmallShape()), ParsePolicy(kPolicy));
  kvevict_sequence* sequence = nullptr;
  ExpectFailure(kvevict_sequence_create(plan.get(), &sequence),
                KVEVICT_ERROR_OUT_OF_MEMORY, {"no device memory"}, report);
}

void CheckNoCurrentContext(const Gpu& gpu, Report* report) {
  kvevict_context_options options = gpu.ContextOptions();
  options.cuda_context = nullptr;
  std::thread([&] {
    kvevict_context* context = nullptr;
    ExpectFailure(kvevict_context_create(&options, &context),
                  KVEVICT_ERROR_UNAVAILABLE, {"cuda_context", "current"},
                  report);
  }).join();
}

// This is the last part, since nothing runs in this context any more.
void CheckContextLost(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  e.side.Prefill(0, 120, 50);
  gpu.Synchronize();
  constexpr int kLaunchFailed = 719;
  mock::FailKernel(1, kLaunchFailed);
  Check(e.Evict());  // queued; the fault is not known yet
  std::vector<int32_t> positions(60);
  size_t n = 0;
  ExpectFailure(
      kvevict_sequence_keep_positions(e.side.sequence(), 0, 0, positions.data(),
                                      positions.size(), &n),
      KVEVICT_ERROR_DEVICE, {"CUDA_ERROR_LAUNCH_FAILED", "context lost"},
      report);
  ExpectFailure(kvevict_sequence_append(e.side.sequence(), 1, gpu.stream()),
                KVEVICT_ERROR_DEVICE, {"context lost"}, report);
  mock::ClearProblems();
}

}  // namespace

void CheckDriverUse(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("executing calls wait, allocate and load nothing",
                [&] { CheckExecutionIsQuiet(gpu, report); });
  report->Check("policy none queues nothing",
                [&] { CheckNothingForNone(gpu, report); });
  report->Check("contexts are left as they were",
                [&] { CheckContextIsRestored(gpu, report); });
  report->Check("captured calls must be prepared",
                [&] { CheckCaptureWantsPreparing(gpu, report); });
  report->Check("log-sum-exps save the first pass",
                [&] { CheckLseSavesAPass(gpu, true, report); });
  report->Check("log-sum-exps given to an eviction save it too",
                [&] { CheckLseSavesAPass(gpu, false, report); });
  report->Check("scores are pooled where they are selected",
                [&] { CheckPoolingWithSelection(gpu, report); });
  report->Check("debug finds keep lists that do not ascend",
                [&] { CheckDebugFindsBadLists(gpu, report); });
  report->Check("device memory comes from the hooks",
                [&] { CheckDeviceMemoryHooks(gpu, report); });
}

void CheckDriverFailures(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("no context is current",
                [&] { CheckNoCurrentContext(gpu, report); });
  report->Check("memory of the device runs out", [&] {
    CheckCreationFailures(gpu, "cuMemAlloc_v2", 2, KVEVICT_ERROR_OUT_OF_MEMORY,
                          "no device memory", report);
  });
  report->Check("a module does not load", [&] {
    CheckCreationFailures(gpu, "cuLibraryLoadData", 200, KVEVICT_ERROR_DEVICE,
                          "CUDA_ERROR_INVALID_IMAGE", report);
  });
  report->Check("a launch fails", [&] { CheckLaunchFailures(gpu, report); });
  report->Check("the context is lost", [&] { CheckContextLost(gpu, report); });
}

}  // namespace kvevict::gpu
