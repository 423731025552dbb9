// Query rows of many layers and of long windows take few launches.
#include <fmt/format.h>

#include <vector>

#include "cuda/kernels/observe.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/other_context.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

std::vector<Shown> AllOf(const std::vector<kvevict_plane>& queries) {
  std::vector<Shown> shown;
  for (uint32_t l = 0; l < queries.size(); ++l)
    shown.push_back({l, &queries[l]});
  return shown;
}

// A geometry of layers with one head of one element.
Geometry OneElement(uint32_t n_layers, uint32_t max_tokens) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = layer.n_kv_heads = 1;
  layer.k_head_dim = layer.v_head_dim = 1;
  return {n_layers, max_tokens, {layer}};
}

// Layers in one call give what single calls do. Neighbours with the same strides
// share a launch.
void CheckLayersTogether(const Gpu& gpu, bool same_strides, Report* report) {
  Evictable apart(gpu);
  apart.side.Prefill(0, 120, 50);
  Check(apart.Evict());
  Evictable e(gpu);
  kvevict_sequence* const sequence = e.side.sequence();
  const uint32_t window = e.side.obs_window();
  Check(kvevict_sequence_append(sequence, 120 - window, gpu.stream()));
  const uint64_t before = mock::Launches("observe_rows");
  std::vector<kvevict_plane> queries(SmallShape().n_layers);
  const std::vector<Shown> shown = AllOf(queries);
  for (uint32_t position = 120 - window; position < 120; ++position) {
    for (uint32_t l = 0; l < queries.size(); ++l) {
      queries[l] = e.twin.DeviceQueries(l, position);
      // Tokens are further apart than the strides say.
      if (!same_strides) queries[l].token_stride_bytes += 2 * l;
    }
    Check(Observe(sequence, shown, 1, KVEVICT_POSITION_NEXT, gpu.stream()));
    Check(kvevict_sequence_append(sequence, 1, gpu.stream()));
  }
  queries.back().data = 0;
  ExpectFailure(Observe(sequence, shown, 1, 119, gpu.stream()),
                KVEVICT_ERROR_INVALID_ARGUMENT, {"layer 1", "data"}, report);
  gpu.Synchronize();
  const uint64_t n_launches = mock::Launches("observe_rows") - before;
  report->FailIf(n_launches != window * (same_strides ? 1 : queries.size()),
                 fmt::format("{} launches for {} tokens", n_launches, window));
  Check(e.Evict());
  ExpectSamePositions(apart.side, e.side, e.twin, report);
}

// Log-sum-exps with strides of 0 are packed. Each row's differs, so any other
// order would choose other tokens.
void CheckPackedLse(const Gpu& gpu, Report* report) {
  Evictable explicitly(gpu), packed(gpu);
  const uint32_t window = explicitly.side.obs_window();
  std::vector<float> lse(size_t{SmallShape().n_q_heads} * window);
  for (size_t i = 0; i < lse.size(); ++i) {
    lse[i] = static_cast<float>((i * 7) % 23);
  }
  const Buffer rows(gpu, lse.size() * sizeof(float));
  rows.Write(lse.data(), rows.n_bytes());
  kvevict_plane plane{};
  plane.data = rows.address();
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = 1;
  const uint64_t passes = mock::Launches("window_lse");
  for (Evictable* e : {&packed, &explicitly}) {
    e->side.Prefill(0, 120, 50);
    for (uint32_t l = 0; l < SmallShape().n_layers; ++l) {
      Check(Observe(e->side.sequence(), {l, nullptr, &plane}, window,
                    120 - window, gpu.stream()));
    }
    Check(e->Evict());
    plane.token_stride_bytes = sizeof(float);
    plane.head_stride_bytes = int64_t{window} * int64_t{sizeof(float)};
  }
  gpu.Synchronize();
  report->FailIf(mock::Launches("window_lse") != passes, "they are not used");
  ExpectSamePositions(explicitly.side, packed.side, packed.twin, report);
}

// A kernel's argument holds fewer layers.
void CheckManyLayers(const Gpu& gpu, Report* report) {
  constexpr uint32_t kLayers = cuda::ObserveParams::kMaxLayers + 1;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const PlanHandle plan =
      CreatePlan(context.get(), OneElement(kLayers, 4),
                 ParsePolicy("snapkv:budget=3,window=1,sink=0"));
  const SequenceHandle sequence = CreateSequence(plan.get());
  const Buffer rows(gpu, kLayers * sizeof(float));
  std::vector<kvevict_plane> queries(kLayers);
  for (uint32_t l = 0; l < kLayers; ++l) {
    queries[l].data = rows.address() + l * sizeof(float);
    queries[l].dtype = KVEVICT_DTYPE_F32;
    queries[l].head_dim = 1;
  }
  const uint64_t before = mock::Launches("observe_rows");
  Check(Observe(sequence.get(), AllOf(queries), 1, 0, gpu.stream()));
  gpu.Synchronize();
  report->FailIf(mock::Launches("observe_rows") != before + 2,
                 "not in two launches");
}

// A grid is less high than the window has rows. The driver takes every launch;
// running them would take too long.
void CheckLongWindow(const Gpu& gpu, Report* report) {
  constexpr int kLaunchFailed = 719;
  constexpr uint32_t kRows = 65536;
  const OtherContext other(gpu);
  const ContextHandle context = CreateContext(other.gpu().ContextOptions());
  const PlanHandle plan =
      CreatePlan(context.get(), OneElement(1, kRows),
                 ParsePolicy("snapkv:budget=65550,window=65536"));
  const SequenceHandle sequence = CreateSequence(plan.get());
  const Buffer rows(other.gpu(), kRows * sizeof(float));
  kvevict_plane queries{};
  queries.data = rows.address();
  queries.dtype = KVEVICT_DTYPE_F32;
  queries.head_dim = 1;
  queries.token_stride_bytes = sizeof(float);
  const uint64_t before = mock::Calls("cuLaunchKernel");
  Check(Observe(sequence.get(), {0, &queries}, kRows, 0, other.gpu().stream()));
  report->FailIf(mock::Calls("cuLaunchKernel") != before + 2,
                 "not in two launches");
  mock::FailKernel(1, kLaunchFailed);
  report->FailIf(other.gpu().driver().cuStreamSynchronize(
                     other.gpu().stream()) == cuda::CUDA_SUCCESS,
                 "the kernels have run");
}

}  // namespace

void CheckQueryRows(const Gpu& gpu, const Effort&, Report* report) {
  report->Check("queries of all layers take one launch",
                [&] { CheckLayersTogether(gpu, true, report); });
  report->Check("queries of layers laid out differently take several",
                [&] { CheckLayersTogether(gpu, false, report); });
  report->Check("log-sum-exps with strides of 0 are packed",
                [&] { CheckPackedLse(gpu, report); });
  report->Check("queries of very many layers take two",
                [&] { CheckManyLayers(gpu, report); });
  report->Check("long windows are observed in pieces",
                [&] { CheckLongWindow(gpu, report); });
}

}  // namespace kvevict::gpu
