// Multiplies keys with the filters of their heads. A work item is some tokens
// of a layer.
#include "core/cpu/row_runs.h"
#include "core/kernels/key_filter.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds KeyFilterScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return SharesOf(context,
                  CheckedSize(KeyFilterScratchFloats(
                      std::min(g.n_kv_heads, kMostSideBySide), g.k_head_dim)) *
                      CheckedSize(sizeof(float)));
}

Status RunKeyFilter(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t head_dim = args.layer.k_head_dim;
  ForEachRowRun(
      context, args, &kvevict_view::k,
      [&](const ScoreJob& job, const RowRun& run, uint32_t worker) {
        float* const scores = job.rows + uint64_t{run.head} * job.tokens.most;
        FilterKeys(
            context.simd(),
            {run.rows, run.first, run.n, head_dim,
             job.statistics.data + run.head * job.statistics.head_stride,
             scores + run.first,
             reinterpret_cast<float*>(
                 ShareOf(context, args.scratch, worker).data()),
             run.heads, static_cast<size_t>(job.statistics.head_stride)});
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_filter = {RunKeyFilter, KeyFilterScratch};

}  // namespace kvevict::cpu
