// Keys against their mean direction: an item is a layer and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/key_diff.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds ScratchBytes(const Context& context,
                          const kvevict_layer_geometry& g,
                          const kvevict_policy&, uint32_t, uint32_t) {
  return SharesOf(context, CheckedSize(KeyDiffScratchFloats(g.k_head_dim)) *
                               CheckedSize(sizeof(float)));
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        ComputeKeyDiffs(
            context.simd(),
            {HeadRows(*job.view, job.view->k, head), job.tokens.Of(head),
             g.k_head_dim, job.rows + uint64_t{head} * job.tokens.most,
             reinterpret_cast<float*>(
                 ShareOf(context, args.scratch, worker).data())});
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_diff = {Run, ScratchBytes, nullptr};

}  // namespace kvevict::cpu
