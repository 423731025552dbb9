#include <fmt/format.h>

#include <functional>
#include <span>
#include <vector>

#include "kvevict/batch.h"
#include "kvevict/calibration.h"
#include "kvevict/experimental.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

using cuda::CUstream;
using Call = std::function<kvevict_status()>;

CUstream DefaultStream(uintptr_t handle) {
  return reinterpret_cast<CUstream>(handle);
}

uint64_t CallsThatQueue() {
  uint64_t n = 0;
  for (const char* function :
       {"cuLaunchKernel", "cuMemsetD8Async", "cuMemsetD32Async",
        "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoDAsync_v2"}) {
    n += mock::Calls(function);
  }
  return n;
}

// Runs `work` while the stream is captured, in the strictest mode.
void Capture(const Gpu& gpu, CUstream stream, const std::function<void()>& work,
             Report* report) {
  const cuda::Driver& d = gpu.driver();
  Check(d, d.cuStreamBeginCapture(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL),
        "cuStreamBeginCapture");
  work();
  cuda::CUgraph graph = nullptr;
  const cuda::CUresult end = d.cuStreamEndCapture(stream, &graph);
  report->FailIf(end != 0, fmt::format("the capture ends with {}",
                                       cuda::ErrorName(d, end)));
  if (graph != nullptr) (void)d.cuGraphDestroy(graph);
}

// The call says why it is refused and queues nothing, and the capture goes on.
void ExpectRefused(const Gpu& gpu, CUstream captured, const char* word,
                   const Call& call, Report* report) {
  const uint64_t before = CallsThatQueue();
  Capture(
      gpu, captured,
      [&] {
        ExpectFailure(call(), KVEVICT_ERROR_UNSUPPORTED, {word, "graph"},
                      report);
      },
      report);
  report->FailIf(CallsThatQueue() != before,
                 fmt::format("{}: something was queued", word));
}

// A sequence that has evicted and then got tokens.
void Fill(Evictable& e) {
  Check(kvevict_sequence_reset(e.side.sequence(), e.side.stream()));
  e.side.Prefill(0, 120, 50);
  Check(e.Evict());
  e.side.Prefill(120, 20, 20);
}

// ---- Calls that may be captured ----

struct Door {
  const char* name;
  Call call;
};

kvevict_status StartAfresh(kvevict_sequence* s, kvevict_stream stream) {
  const kvevict_status status = kvevict_sequence_reset(s, stream);
  if (status != KVEVICT_OK) return status;
  return kvevict_sequence_start(s, nullptr, 0, 7, stream);
}

// Every door, for a sequence that holds 80 of 140 tokens or none. The eviction
// comes last, since it changes what is held.
std::vector<Door> Doors(const Gpu& gpu, const Evictable& e) {
  kvevict_sequence* const s = e.side.sequence();
  const kvevict_plan* const plan = e.side.plan();
  const kvevict_context* const context = e.side.context();
  const kvevict_view* const view = e.twin.device_views().data();
  const kvevict_plane queries = e.twin.DeviceQueries(0, 0);
  kvevict_plane lse{};
  lse.data = e.workspace.address();
  lse.dtype = KVEVICT_DTYPE_F32;
  lse.head_dim = 1;
  lse.head_stride_bytes = sizeof(float);
  const uint32_t next = e.side.Logical();
  float* const scores = e.scores.pointer<float>();
  int32_t* const keep = e.keep.pointer<int32_t>();
  void* const workspace = e.workspace.pointer<void>();
  const size_t n_bytes = e.workspace.n_bytes();
  const kvevict_stream stream = gpu.stream();
  const auto select = [=](std::span<const int32_t> protect) {
    uint32_t n_keep = 0;
    return Select({context, plan, 0, 120, scores, 240, protect}, keep, 240,
                  &n_keep, {workspace, n_bytes, stream});
  };
  return {
      {"capture",
       [=] {
         return Observe(s, {0, &queries}, 1, next, stream);
       }},
      {"observe, all layers",
       [=] {
         const Shown both[] = {{0, &queries}, {1, &queries}};
         return Observe(s, both, 1, next, stream);
       }},
      {"observe, log-sum-exps",
       [=] {
         const uint32_t last = next == 0 ? 0 : next - 1;
         return Observe(s, {0, nullptr, &lse}, 1, last, stream);
       }},
      {"append", [=] { return kvevict_sequence_append(s, 1, stream); }},
      {"trim",
       [=] {
         return kvevict_sequence_trim_to(s, next == 0 ? 0 : 130, stream);
       }},
      {"reset", [=] { return kvevict_sequence_reset(s, stream); }},
      {"start", [=] { return StartAfresh(s, stream); }},
      {"score",
       [=] {
         return Score({plan, 0, 60, view, &queries}, scores, 120,
                      {workspace, n_bytes, stream});
       }},
      {"select", [=] { return select({}); }},
      {"select, one protected",
       [=] {
         constexpr int32_t kProtect[] = {20};
         return select(kProtect);
       }},
      {"compact",
       [=] {
         return OneMove(*view, 120, keep, 10, 1)
             .Compact(context, {nullptr, 0, stream});
       }},
      {"compact, with a workspace",
       [=] {
         return OneMove(*view, 120, keep, 10, 1)
             .Compact(context, {workspace, n_bytes, stream});
       }},
      {"reorder",
       [=] {
         return OneMove(*view, 120, keep, 10, 1)
             .Reorder(context, {workspace, n_bytes, stream});
       }},
      {"rotate",
       [=] {
         return Rotate({plan, 0, 60, view, keep, 60, 1}, stream);
       }},
      {"evict", [&e] { return e.Evict(); }},
  };
}

// ---- Calls that wait ----

// These calls take positions from the host or ask for them there.
void CheckWhereItBegins(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  kvevict_sequence* const s = e.side.sequence();
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  Fill(e);
  std::vector<uint8_t> saved(1 << 16);
  size_t n = 0;
  uint32_t prefix = 0;
  const auto save = [&] {
    return kvevict_sequence_save(s, saved.data(), saved.size(), &n);
  };
  const auto trim = [&] {
    return kvevict_sequence_trim_to(s, 1, gpu.stream());
  };
  const auto load = [&] {
    return kvevict_sequence_load(s, saved.data(), n, gpu.stream());
  };
  const Call asks[] = {
      save, trim, [&] { return kvevict_sequence_exact_prefix(s, &prefix); }};
  for (const Call& call : asks) {
    ExpectRefused(gpu, gpu.stream(), "copying to the host", call, report);
  }
  Check(save());
  ExpectRefused(gpu, gpu.stream(), "copying from the host", load, report);
  report->FailIf(e.side.Stored(0) != 80 || e.side.Logical() != 140,
                 "the sequence has changed");
  Check(load());
  report->FailIf(e.side.Positions(1, 1).back() != 139, "it is another one");

  // It works on the stream alone.
  kvevict_sequence* fork = nullptr;
  const uint64_t waits = mock::Waits();
  Check(kvevict_sequence_reset(s, gpu.stream()));
  Check(kvevict_sequence_start(s, nullptr, 0, 30, gpu.stream()));
  report->FailIf(mock::Waits() != waits, "a start without lists waited");
  const uint64_t copies = mock::Calls("cuMemcpyDtoDAsync_v2");
  Check(load());
  Check(kvevict_sequence_fork(s, nullptr, &fork, gpu.stream()));
  const SequenceHandle handle(fork);
  report->FailIf(mock::Calls("cuMemcpyDtoDAsync_v2") != copies + 2,
                 "positions and queries are two copies on the device");
  gpu.Synchronize();
}

void CheckDebug(const Gpu& gpu, Report* report) {
  kvevict_context_options options = gpu.ContextOptions();
  options.debug = 1;
  Evictable e(gpu, &options);
  Fill(e);
  for (const Door& door : Doors(gpu, e)) {
    ExpectRefused(gpu, gpu.stream(), "debug", door.call, report);
    report->FailIf(e.side.Stored(0) != 80 || e.side.Logical() != 140,
                   fmt::format("{}: the sequence has changed", door.name));
  }
  Check(e.Evict());
}

void CheckSelectingOnHost(const Gpu& gpu, Report* report) {
  kvevict_context_options options = gpu.ContextOptions();
  options.select_on_host = 1;
  Evictable e(gpu, &options);
  Fill(e);
  ExpectRefused(
      gpu, gpu.stream(), "select_on_host", [&] { return e.Evict(); }, report);
  report->FailIf(e.side.Stored(0) != 80, "the host counts an eviction");
  Check(e.Evict());
}

// The host reads how many each head keeps before rows move.
void CheckHeadsByScore(const Gpu& gpu, Report* report) {
  Evictable e(gpu, nullptr, "snapkv:budget=60,window=16,heads=adaptive");
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  e.side.Prefill(0, 120, 50);
  ExpectRefused(
      gpu, gpu.stream(), "heads that are not equal", [&] { return e.Evict(); },
      report);
  report->FailIf(e.side.Stored(0) != 120, "the host counts an eviction");
  Check(e.Evict());
}

// The host reads how many each layer keeps before rows move.
void CheckLayersByScore(const Gpu& gpu, Report* report) {
  Evictable e(gpu, nullptr, "cake:budget=60,window=16");
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  e.side.Prefill(0, 120, 50);
  ExpectRefused(
      gpu, gpu.stream(), "a split over layers by score",
      [&] { return e.Evict(); }, report);
  report->FailIf(e.side.Stored(0) != 120, "the host counts an eviction");
  Check(e.Evict());
}

// Tries every kind of stream that the host would have to wait for.
void CheckPositionsOnHost(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  kvevict_sequence* const s = e.side.sequence();
  std::vector<int32_t> positions(80);
  size_t n = 0;
  int32_t one = 0;
  const Call calls[] = {
      [&] {
        return kvevict_sequence_keep_positions(s, 1, 1, positions.data(),
                                               positions.size(), &n);
      },
      [&] { return kvevict_sequence_position_of_slot(s, 1, 1, 3, &one); },
      [&] { return kvevict_sequence_slot_of_position(s, 1, 1, 3, &one); },
  };
  CUstream blocking = nullptr;
  Check(gpu.driver(),
        gpu.driver().cuStreamCreate(&blocking, cuda::CU_STREAM_DEFAULT),
        "cuStreamCreate");
  const struct {
    CUstream of_sequence;
    CUstream captured;
  } streams[] = {
      {gpu.stream(), gpu.stream()},
      {DefaultStream(2), DefaultStream(2)},  // the thread's
      {DefaultStream(0), blocking},          // joins the default stream
      {DefaultStream(1), blocking},
  };
  for (const auto& [of_sequence, captured] : streams) {
    e.side.UseStream(of_sequence);
    Fill(e);
    for (const Call& call : calls) {
      ExpectRefused(gpu, captured, "copying to the host", call, report);
    }
    Check(calls[0]());
    // The host knows them now.
    Capture(
        gpu, captured, [&] { Check(calls[0]()); }, report);
  }
  (void)gpu.driver().cuStreamDestroy(blocking);
}

// The host must know here which protected positions are held.
void CheckProtected(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  Check(kvevict_context_prepare(e.side.context(), e.side.plan()));
  Fill(e);
  std::vector<int32_t> protect(60);
  for (int32_t i = 0; i < 60; ++i) protect[i] = 20 + i;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect.data();
  options.protected_positions_len = protect.size();
  ExpectRefused(
      gpu, gpu.stream(), "copying to the host",
      [&] { return e.Evict(&options); }, report);
}

// Statistics of queries are summed on the host.
void CheckStatistics(const Gpu& gpu, Report* report) {
  Evictable e(gpu, nullptr, "none");
  kvevict_calibration* calibration = nullptr;
  Check(kvevict_calibration_create(e.side.plan(), 0, &calibration));
  const kvevict_plane queries = e.twin.DeviceQueries(0, 0);
  const Call observe = [&] {
    return kvevict_calibration_observe(calibration, 0, &queries, 0, 1,
                                       gpu.stream());
  };
  ExpectRefused(gpu, gpu.stream(), "copying to the host", observe, report);
  uint64_t n_rows = 1;
  Check(kvevict_calibration_rows(calibration, 0, &n_rows));
  report->FailIf(n_rows != 0, "refused rows count");
  Check(observe());
  kvevict_calibration_destroy(calibration);
}

// Another capture, which forbids waiting, is not disturbed.
void CheckWaitingBeside(const Gpu& gpu, Report* report) {
  CUstream other = nullptr;
  Check(gpu.driver(),
        gpu.driver().cuStreamCreate(&other, cuda::CU_STREAM_NON_BLOCKING),
        "cuStreamCreate");
  kvevict_context_options debug = gpu.ContextOptions();
  debug.debug = 1;
  kvevict_context_options on_host = gpu.ContextOptions();
  on_host.select_on_host = 1;
  for (const kvevict_context_options* options : {&debug, &on_host}) {
    Evictable e(gpu, options);
    Fill(e);
    Capture(
        gpu, other,
        [&] {
          Check(e.Evict());
          (void)e.side.Positions(0, 0);
        },
        report);
  }
  (void)gpu.driver().cuStreamDestroy(other);
}

// ---- Calls that compile ----

// A capture gets all of a door's work or none, even if another door has had its
// kernels compiled before.
void CheckPartlyPrepared(const Gpu& gpu, const char* policy, Report* report) {
  constexpr int kNone = -1;
  int n_refused = 0;
  int n_captured = 0;
  for (int opened = kNone, n_doors = 1; opened < n_doors; ++opened) {
    Evictable e(gpu, nullptr, policy);
    if (opened != kNone) {
      e.side.Prefill(0, 120, 50);
      const std::vector<Door> doors = Doors(gpu, e);
      n_doors = static_cast<int>(doors.size());
      // It may say that there is nothing to do, or refuse.
      (void)doors[opened].call();
      gpu.Synchronize();
    }
    for (const Door& door : Doors(gpu, e)) {
      const uint64_t before = CallsThatQueue();
      kvevict_status status = KVEVICT_OK;
      Capture(
          gpu, gpu.stream(), [&] { status = door.call(); }, report);
      if (status == KVEVICT_OK) {
        ++n_captured;
        continue;
      }
      ++n_refused;
      report->FailIf(
          CallsThatQueue() != before,
          fmt::format("{} after {}: {}, and something was queued", door.name,
                      opened == kNone ? "none" : Doors(gpu, e)[opened].name,
                      kvevict_last_error_message()));
    }
  }
  report->FailIf(n_refused == 0, "nothing was refused");
  report->FailIf(n_captured == 0, "nothing was captured");
  report->Note("refused", n_refused);
  report->Note("captured", n_captured);
}

// A refused call works outside of a capture, and then within one.
void CheckPreparedByUse(const Gpu& gpu, Report* report) {
  Evictable e(gpu);
  e.side.Prefill(0, 120, 50);
  (void)e.side.Score(0, 120);  // compiles the scorer, but no selection
  ExpectRefused(
      gpu, gpu.stream(), "not prepared", [&] { return e.Evict(); }, report);
  Check(e.Evict());
  e.side.Prefill(120, 20, 20);
  Capture(
      gpu, gpu.stream(), [&] { Check(e.Evict()); }, report);
}

// The first sums clear those of earlier tokens.
void CheckFirstSums(const Gpu& gpu, Report* report) {
  Evictable e(gpu, nullptr, "h2o:budget=20,recent=4");
  kvevict_plane plane = kvevict_plane_head_major(e.scores.pointer<float>(),
                                                 KVEVICT_DTYPE_F32, 100, 1);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.attention_sums = &plane;
  inputs.n_sum_heads = 2;
  const kvevict_observation shown = {sizeof(shown), 0, &inputs};
  const auto observe = [&] {
    return kvevict_sequence_observe(e.side.sequence(), &shown, 1, 1, 10,
                                    gpu.stream());
  };
  Check(kvevict_sequence_append(e.side.sequence(), 10, gpu.stream()));
  Capture(
      gpu, gpu.stream(),
      [&] {
        ExpectFailure(observe(), KVEVICT_ERROR_UNSUPPORTED,
                      {"attention_sums", "captured"}, report);
      },
      report);
  Check(observe());
  ExpectFailure(observe(), KVEVICT_ERROR_INVALID_ARGUMENT,
                {"[10, 11)", "do not follow"}, report);
  gpu.Synchronize();
}

void CheckHandlesMeanwhile(const Gpu& gpu, Report* report) {
  const uint64_t queued = mock::Pending();
  Capture(
      gpu, gpu.stream(),
      [&] {
        const ContextHandle context = CreateContext(gpu.ContextOptions());
        const PlanHandle plan = CreatePlan(
            context.get(), GeometryOf(SmallShape()), ParsePolicy(kPolicy));
        Check(kvevict_context_prepare(context.get(), plan.get()));
        const SequenceHandle sequence = CreateSequence(plan.get());
      },
      report);
  report->FailIf(mock::Pending() != queued, "something waits to run");
}

}  // namespace

void CheckCaptureUse(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("in a capture, debug is refused",
                [&] { CheckDebug(gpu, report); });
  report->Check("in a capture, selecting on the host is refused",
                [&] { CheckSelectingOnHost(gpu, report); });
  report->Check("in a capture, counting by scores is refused", [&] {
    CheckHeadsByScore(gpu, report);
    CheckLayersByScore(gpu, report);
  });
  report->Check("in a capture, positions on the host are refused",
                [&] { CheckPositionsOnHost(gpu, report); });
  report->Check("in a capture, positions from the host are refused",
                [&] { CheckWhereItBegins(gpu, report); });
  report->Check("in a capture, looking for protected positions is refused",
                [&] { CheckProtected(gpu, report); });
  report->Check("in a capture, statistics of queries are refused",
                [&] { CheckStatistics(gpu, report); });
  report->Check("beside a capture, waiting is allowed",
                [&] { CheckWaitingBeside(gpu, report); });
  for (const char* policy : {kPolicy, "snapkv:budget=60,scope=layer,window=16",
                             "snapkv:budget=60,scope=model,window=16"}) {
    report->Check(
        fmt::format("in a capture, all of a door or none, {}", policy),
        [&] { CheckPartlyPrepared(gpu, policy, report); });
  }
  report->Check("in a capture, what was used is prepared",
                [&] { CheckPreparedByUse(gpu, report); });
  report->Check("in a capture, the first sums are refused",
                [&] { CheckFirstSums(gpu, report); });
  report->Check("in a capture, handles come and go",
                [&] { CheckHandlesMeanwhile(gpu, report); });
}

}  // namespace kvevict::gpu
