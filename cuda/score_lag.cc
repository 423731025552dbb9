// Ranks keys and values relative to later ones: two launches for layers with
// the same layout.
#include <algorithm>

#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/lag.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

constexpr float kLog2ESquared = 2.08136898f;  // as in core/kernels/lag.cc

bool LagJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         ReadAlike(*a.view, a.view->v, *b.view, b.view->v) &&
         InOneTable(a.tokens, b.tokens);
}

LagRows LagRowsOf(const kvevict_view& view, const kvevict_plane& plane) {
  const uint32_t dim = plane.head_dim;
  return {RowsOf(view, plane), 1.0f / static_cast<float>(dim),
          dim == 1 ? 0.0f : kLog2ESquared / static_cast<float>(dim - 1), 0, 0};
}

// The partitions of a block that keeps rows. Where there are few, they go to many
// blocks, though each of these reads one more.
uint32_t RunOf(uint64_t n_partitions) {
  constexpr uint64_t kManyBlocks = 1024;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(n_partitions / kManyBlocks, 1, 8));
}

Status RunLagBatch(const Context& context, Stream stream, const ScoreArgs& args,
                   Jobs<ScoreJob> batch) {
  const kvevict_layer_geometry& g = args.layer;
  const kvevict_view& view = *batch.front().view;
  const Counts tokens(batch.front().tokens);
  const uint32_t longest = LongestOf(batch);
  LagParams p{};
  p.keys = LagRowsOf(view, view.k);
  p.values = LagRowsOf(view, view.v);
  p.tokens = tokens.table();
  p.scratch = AddressOf(args.scratch.data());
  p.scratch_stride = longest;
  p.n_layers = Size(batch);
  p.n_kv_heads = g.n_kv_heads;
  p.n_sink = args.policy.sink.count;
  p.partition = args.policy.block;
  p.rank_scale =
      args.policy.ranks != 0 ? 1.0f / static_cast<float>(p.partition) : 0.0f;
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    p.layers[i] = {BaseOf(job.view->k),
                   BaseOf(job.view->v),
                   AddressOf(job.view->block_table),
                   AddressOf(job.rows),
                   job.tokens.most,
                   tokens.FirstOf(job.tokens)};
  }
  const ModuleKey reader = ReaderOf(
      context, ModuleId::lag, KindsOf(p.keys.rows) | KindsOf(p.values.rows));
  const uint32_t n_partitions = LagPartitions(longest, p.n_sink, p.partition);
  if (n_partitions > 1) {
    uint32_t shared_bytes = 0;
    for (LagRows* const rows : {&p.keys, &p.values}) {
      const uint32_t bytes =
          LagKeptBytes(rows->rows, p.partition, reader.dynamic_shared_bytes);
      rows->is_kept = bytes != 0 ? 1 : 0;
      shared_bytes = std::max(shared_bytes, bytes);
    }
    const uint32_t n = n_partitions - 1;
    p.run = shared_bytes == 0
                ? 1
                : RunOf(uint64_t{n} * g.n_kv_heads * 2 * p.n_layers);
    KV_RETURN_IF_ERROR(Launch(context, stream, reader, KernelId::lag_spreads,
                              {(n + p.run - 1) / p.run, g.n_kv_heads,
                               2 * p.n_layers, kLagThreads, shared_bytes},
                              p));
  }
  return Launch(context, stream, reader, KernelId::lag_ranks,
                {std::max(2u, n_partitions) - 1, g.n_kv_heads, p.n_layers,
                 kLagRankThreads},
                p);
}

ScratchNeeds LagScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return CheckedSize(std::min(size.n_layers, LagParams::kMaxLayers)) *
         CheckedSize(LagScratchRows(g.k_head_dim, g.v_head_dim)) *
         CheckedSize(g.n_kv_heads) * CheckedSize(size.n_tokens) *
         CheckedSize(sizeof(float));
}

Status CheckLag(const Context& context, Stream stream, const ScoreArgs& args) {
  return CheckReading(context, stream, args, {ModuleId::lag});
}

Status RunLag(const Context& context, Stream stream, const ScoreArgs& args) {
  return ForEachBatch(args.jobs, LagParams::kMaxLayers, LagJobsGoTogether,
                      [&](Jobs<ScoreJob> batch) {
                        return RunLagBatch(context, stream, args, batch);
                      });
}

}  // namespace

const ScoreOp kOp_score_lag = {RunLag, LagScratch, CheckLag};

}  // namespace kvevict::cuda
