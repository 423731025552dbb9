// Scores by shares of squared norms, one layer after the other. First a work
// item computes norms of some tokens, then shares of a KV head.
#include "core/cpu/row_runs.h"
#include "core/kernels/cur.h"
#include "core/kernels/row_norm.h"

namespace kvevict::cpu {
namespace {

// Bytes of the norms of a layer's values.
ScratchNeeds CurScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return CheckedSize(g.n_kv_heads) * CheckedSize(size.n_tokens) *
         CheckedSize(sizeof(float));
}

// out: [n_kv_heads, the layer's tokens]
void FindNorms(const Context& context, const ScoreArgs& layer,
               kvevict_plane kvevict_view::*plane, uint32_t head_dim,
               float* out) {
  ForEachRowRun(context, layer, plane,
                [&](const ScoreJob& job, const RowRun& run, uint32_t) {
                  float* const of_head =
                      out + uint64_t{run.head} * job.tokens.most;
                  ComputeRowNorms(context.simd(),
                                  {run.rows, run.first, run.n, head_dim, false,
                                   of_head + run.first, run.heads});
                });
}

Status RunCur(const Context& context, Stream, const ScoreArgs& args) {
  auto* const value_norms = reinterpret_cast<float*>(args.scratch.data());
  ScoreArgs layer = args;
  for (const ScoreJob& job : args.jobs) {
    layer.jobs = Jobs<ScoreJob>(job);
    FindNorms(context, layer, &kvevict_view::k, args.layer.k_head_dim,
              job.rows);
    FindNorms(context, layer, &kvevict_view::v, args.layer.v_head_dim,
              value_norms);
    ForEachHead(context, layer, [&](const ScoreJob&, uint32_t head, uint32_t) {
      const uint64_t first = uint64_t{head} * job.tokens.most;
      ComputeCurShares({job.tokens.Of(head), args.policy.block,
                        args.policy.sink.count, value_norms + first,
                        job.rows + first});
    });
  }
  return Status();
}

}  // namespace

const ScoreOp kOp_score_cur = {RunCur, CurScratch};

}  // namespace kvevict::cpu
