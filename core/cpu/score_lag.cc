// Ranks keys and values relative to later ones. A work item is a layer and KV
// head.
#include "core/cpu/cpu.h"
#include "core/kernels/lag.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds LagScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return SharesOf(context, CheckedSize(LagScratchBytes(
                               g.k_head_dim, g.v_head_dim, size.policy.block)));
}

Status RunLag(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  ForEachHead(context, args,
              [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
                ComputeLagScores(
                    context.simd(),
                    {HeadRows(*job.view, job.view->k, head),
                     HeadRows(*job.view, job.view->v, head), g.k_head_dim,
                     g.v_head_dim, job.tokens.Of(head), args.policy.sink.count,
                     args.policy.block, args.policy.ranks != 0,
                     ShareOf(context, args.scratch, worker).data(),
                     job.rows + uint64_t{head} * job.tokens.most});
              });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_lag = {RunLag, LagScratch};

}  // namespace kvevict::cpu
