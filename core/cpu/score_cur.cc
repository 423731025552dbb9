// Shares of squared norms: an item is a layer and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/cur.h"
#include "core/kernels/row_norm.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

// Norms of one head's values.
ScratchNeeds ScratchBytes(const Context& context, const kvevict_layer_geometry&,
                          const kvevict_policy&, uint32_t, uint32_t n_tokens) {
  return SharesOf(context, CheckedSize(n_tokens) * CheckedSize(sizeof(float)));
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        const uint32_t n_tokens = job.tokens.Of(head);
        float* const scores = job.rows + uint64_t{head} * job.tokens.most;
        auto* const value_norms = reinterpret_cast<float*>(
            ShareOf(context, args.scratch, worker).data());
        ComputeRowNorms(context.simd(),
                        {HeadRows(*job.view, job.view->k, head), 0, n_tokens,
                         g.k_head_dim, false, scores});
        ComputeRowNorms(context.simd(),
                        {HeadRows(*job.view, job.view->v, head), 0, n_tokens,
                         g.v_head_dim, false, value_norms});
        ComputeCurShares({n_tokens, args.policy.block, args.policy.n_sink,
                          value_norms, scores});
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_cur = {Run, ScratchBytes, nullptr};

}  // namespace kvevict::cpu
