#include <fmt/format.h>

#include "kvevict/experimental.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/doors.h"
#include "tests/gpu/model.h"

namespace kvevict::gpu {
namespace {

constexpr char kPolicy[] = "snapkv:budget=60,scope=head,window=16";

Shape ShapeOf(const Effort& effort) {
  return {"",
          effort.full ? 4u : 2u,
          effort.full ? 32u : 4u,
          effort.full ? 8u : 2u,
          effort.full ? 128u : 32u,
          effort.full ? 4096u : 120u,
          KVEVICT_DTYPE_BF16,
          KVEVICT_DTYPE_BF16,
          Layout::kTokenMajor};
}

// Observes the queries of one token at the place where the graph reads them,
// and counts it.
void CaptureStep(const Side& side, const Twin& twin, const Buffer& row) {
  const Shape& shape = twin.shape();
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    kvevict_plane queries = twin.DeviceQueries(l, 0);
    queries.data = row.address() + l * (row.n_bytes() / shape.n_layers);
    Check(Observe(side.sequence(), {l, &queries}, 1, KVEVICT_POSITION_NEXT,
                  side.stream()));
  }
  Check(kvevict_sequence_append(side.sequence(), 1, side.stream()));
}

// Writes the queries of a position there.
void WriteRow(const Twin& twin, uint32_t position, const Buffer& row) {
  const size_t n_bytes = row.n_bytes() / twin.shape().n_layers;
  for (uint32_t l = 0; l < twin.shape().n_layers; ++l) {
    const kvevict_plane queries = twin.HostQueries(l, position);
    row.Write(reinterpret_cast<const void*>(queries.data), n_bytes,
              l * n_bytes);
  }
}

void CheckReplays(const Gpu& gpu, const Effort& effort, Report* report) {
  const Shape shape = ShapeOf(effort);
  const uint32_t n_steps = kRoomForDecoding / 2;
  Twin twin(gpu, shape, effort.seed);
  const size_t row_bytes =
      static_cast<size_t>(twin.HostQueries(0, 0).token_stride_bytes);

  // This side sees the same tokens without graphs.
  Side eager(&gpu, &twin, kPolicy);
  eager.Prefill(0, shape.n_tokens, shape.n_tokens);
  eager.Evict();
  eager.Prefill(shape.n_tokens, n_steps, 1);
  twin.Restore();

  Side side(&gpu, &twin, kPolicy);
  Check(kvevict_context_prepare(side.context(), side.plan()));
  const Buffer row(gpu, row_bytes * shape.n_layers);
  side.Prefill(0, shape.n_tokens - n_steps, 50);
  // The first launch was already counted when it was captured.
  const Graph step(gpu, [&] { CaptureStep(side, twin, row); });
  const auto run = [&](uint32_t position, bool counted) {
    WriteRow(twin, position, row);
    step.Launch();
    if (!counted) Check(kvevict_sequence_replayed(side.sequence(), 1));
  };
  for (uint32_t i = 0; i < n_steps; ++i) {
    run(shape.n_tokens - n_steps + i, i == 0);
  }
  side.Evict();
  for (uint32_t i = 0; i < n_steps; ++i) run(shape.n_tokens + i, false);
  report->FailIf(side.Logical() != eager.Logical(), "logical lengths differ");
  ExpectSamePositions(side, eager, twin, report);
  // The rings are the same if the next eviction of the same cache is.
  twin.Restore();
  eager.Evict();
  twin.Restore();
  side.Evict();
  ExpectSamePositions(side, eager, twin, report);
}

// The doors in a graph that is launched twice give what they give outside.
void CheckDoorsInGraph(const Gpu& gpu, const Effort& effort, Report* report) {
  const Shape shape = ShapeOf(effort);
  const uint32_t n = shape.n_tokens;
  Twin twin(gpu, shape, effort.seed);
  Side side(&gpu, &twin, kPolicy);
  Check(kvevict_context_prepare(side.context(), side.plan()));
  const std::vector<float> expected = side.Score(1, n);
  const Buffer scores(gpu, expected.size() * sizeof(float));
  const Buffer score_workspace(
      gpu, WorkspaceBytes(side.plan(), KVEVICT_OPERATION_SCORE));
  const Buffer select_workspace(
      gpu, SelectBytes(side.context(), n, shape.n_kv_heads));
  const Buffer keep(gpu, expected.size() * sizeof(int32_t));
  const kvevict_plane queries = twin.DeviceQueries(1, n - side.obs_window());
  uint32_t n_keep = 0;
  const Graph graph(gpu, [&] {
    Check(Score({side.plan(), 1, n, &twin.device_views()[1], &queries},
                scores.pointer<float>(), expected.size(),
                {score_workspace.pointer<void>(), score_workspace.n_bytes(),
                 gpu.stream()}));
    Check(Select({side.context(), side.plan(), 1, n, scores.pointer<float>(),
                  expected.size()},
                 keep.pointer<int32_t>(), expected.size(), &n_keep,
                 {select_workspace.pointer<void>(), select_workspace.n_bytes(),
                  gpu.stream()}));
    const OneMove move(twin.device_views()[1], n, keep.pointer<int32_t>(),
                       size_t{shape.n_kv_heads} * n_keep, shape.n_kv_heads);
    Check(move.Compact(side.context(), {nullptr, 0, gpu.stream()}));
  });
  for (int launch = 0; launch < 2; ++launch) {
    twin.Restore();
    graph.Launch();
    report->FailIf(scores.ReadAll<float>() != expected,
                   fmt::format("launch {}: other scores", launch));
    std::vector<int32_t> lists(size_t{shape.n_kv_heads} * n_keep);
    keep.Read(lists.data(), lists.size() * sizeof(int32_t));
    twin.Fetch(1);
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
      report->Expect(twin.CompareWithPositions(
          1, h,
          {lists.begin() + h * n_keep, lists.begin() + (h + 1) * n_keep}));
    }
  }
}

}  // namespace

void CheckGraphs(const Gpu& gpu, const Effort& effort, Report* report) {
  report->Check("graphs: decoding across an eviction",
                [&] { CheckReplays(gpu, effort, report); });
  report->Check("graphs: the three doors",
                [&] { CheckDoorsInGraph(gpu, effort, report); });
}

}  // namespace kvevict::gpu
