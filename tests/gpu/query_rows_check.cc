// Query rows of many layers and of long windows, in how few launches.
#include <fmt/format.h>

#include <vector>

#include "cuda/kernels/params.h"
#include "tests/gpu/driver_use_check.h"
#include "tests/gpu/evictable.h"
#include "tests/gpu/other_context.h"
#include "tests/rig/mock/mock.h"

namespace kvevict::gpu {
namespace {

// Layers together are like one after the other, in a launch for neighbours of the
// same strides.
void CheckLayersTogether(const Gpu& gpu, bool same_strides, Report* report) {
  Evictable apart(gpu);
  apart.side.Prefill(0, 120, 50);
  Check(apart.Evict());
  Evictable e(gpu);
  kvevict_sequence* const sequence = e.side.sequence();
  const uint32_t window = e.side.obs_window();
  Check(kvevict_sequence_append(sequence, 120 - window));
  const uint64_t before = mock::Launches("observe_rows");
  std::vector<kvevict_plane> queries(SmallShape().n_layers);
  for (uint32_t position = 120 - window; position < 120; ++position) {
    for (uint32_t l = 0; l < queries.size(); ++l) {
      queries[l] = e.twin.DeviceQueries(l, position);
      // Nothing lies a token further on.
      if (!same_strides) queries[l].token_stride_bytes += 2 * l;
    }
    Check(kvevict_sequence_observe_layers(
        sequence, queries.data(), queries.size(), 1, KVEVICT_POSITION_NEXT));
    Check(kvevict_sequence_append(sequence, 1));
  }
  queries.back().data = 0;
  ExpectFailure(kvevict_sequence_observe_layers(sequence, queries.data(),
                                                queries.size(), 1, 119),
                KVEVICT_ERROR_INVALID_ARGUMENT, {"layer 1", "data"}, report);
  gpu.Synchronize();
  const uint64_t n_launches = mock::Launches("observe_rows") - before;
  report->FailIf(n_launches != window * (same_strides ? 1 : queries.size()),
                 fmt::format("{} launches for {} tokens", n_launches, window));
  Check(e.Evict());
  ExpectSamePositions(apart.side, e.side, e.twin, report);
}

// More layers than a kernel's argument holds.
void CheckManyLayers(const Gpu& gpu, Report* report) {
  constexpr uint32_t kLayers = cuda::ObserveParams::kMaxLayers + 1;
  kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
  g.n_layers = kLayers;
  g.n_q_heads = g.n_kv_heads = g.k_head_dim = g.v_head_dim = 1;
  g.max_tokens = 4;
  const ContextHandle context = CreateContext(gpu.ContextOptions());
  const PlanHandle plan = CreatePlan(
      context.get(), g, ParsePolicy("snapkv:budget=3,window=1,sink=0"));
  const SequenceHandle sequence = CreateSequence(plan.get());
  Check(kvevict_sequence_set_stream(sequence.get(), gpu.stream()));
  const Buffer rows(gpu, kLayers * sizeof(float));
  std::vector<kvevict_plane> queries(kLayers);
  for (uint32_t l = 0; l < kLayers; ++l) {
    queries[l].data = rows.address() + l * sizeof(float);
    queries[l].dtype = KVEVICT_DTYPE_F32;
    queries[l].head_dim = 1;
  }
  const uint64_t before = mock::Launches("observe_rows");
  Check(kvevict_sequence_observe_layers(sequence.get(), queries.data(), kLayers,
                                        1, 0));
  gpu.Synchronize();
  report->FailIf(mock::Launches("observe_rows") != before + 2,
                 "not in two launches");
}

// A window of more rows than a grid is high: the driver takes every launch. They
// are not run, it would take too long.
void CheckLongWindow(const Gpu& gpu, Report* report) {
  constexpr int kLaunchFailed = 719;
  constexpr uint32_t kRows = 65536;
  const OtherContext other(gpu);
  kvevict_geometry g = KVEVICT_GEOMETRY_INIT;
  g.n_layers = g.n_q_heads = g.n_kv_heads = 1;
  g.k_head_dim = g.v_head_dim = 1;
  g.max_tokens = kRows;
  const ContextHandle context = CreateContext(other.gpu().ContextOptions());
  const PlanHandle plan = CreatePlan(
      context.get(), g, ParsePolicy("snapkv:budget=65550,window=65536"));
  const SequenceHandle sequence = CreateSequence(plan.get());
  Check(kvevict_sequence_set_stream(sequence.get(), other.gpu().stream()));
  const Buffer rows(other.gpu(), kRows * sizeof(float));
  kvevict_plane queries{};
  queries.data = rows.address();
  queries.dtype = KVEVICT_DTYPE_F32;
  queries.head_dim = 1;
  queries.token_stride_bytes = sizeof(float);
  const uint64_t before = mock::Calls("cuLaunchKernel");
  Check(kvevict_sequence_observe(sequence.get(), 0, &queries, kRows, 0));
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
  report->Check("queries of very many layers take two",
                [&] { CheckManyLayers(gpu, report); });
  report->Check("long windows are observed in pieces",
                [&] { CheckLongWindow(gpu, report); });
}

}  // namespace kvevict::gpu
