// Keys against their mean direction, all at once or block by block: an item is a layer
// and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/key_diff.h"
#include "core/policy.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds ScratchBytes(const Context& context,
                          const kvevict_layer_geometry& g,
                          const kvevict_policy& policy, uint32_t,
                          uint32_t n_tokens) {
  if (policy.block > 0) {
    return SharesOf(context,
                    CheckedSize(KeyDiffBlocksBytes(g.k_head_dim, n_tokens)));
  }
  return SharesOf(context, CheckedSize(KeyDiffScratchFloats(g.k_head_dim)) *
                               CheckedSize(sizeof(float)));
}

void ScoreBlocks(const Context& context, const ScoreArgs& args,
                 const ScoreJob& job, uint32_t head, uint8_t* scratch) {
  KeyDiffBlocks blocks;
  blocks.keys = HeadRows(*job.view, job.view->k, head);
  blocks.n_tokens = job.tokens.Of(head);
  blocks.head_dim = args.layer.k_head_dim;
  blocks.n_keep = job.keep.Of(head);
  blocks.block = args.policy.block;
  blocks.tie = TieOf(args.policy) == KVEVICT_TIE_LOWER_POSITION ? Tie::kLower
                                                                : Tie::kHigher;
  blocks.out = job.rows + uint64_t{head} * job.tokens.most;
  blocks.scratch = scratch;
  ComputeKeyDiffBlocks(context.simd(), blocks);
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        uint8_t* const scratch = ShareOf(context, args.scratch, worker).data();
        if (args.policy.block > 0) {
          ScoreBlocks(context, args, job, head, scratch);
          return;
        }
        ComputeKeyDiffs(
            context.simd(),
            {HeadRows(*job.view, job.view->k, head), job.tokens.Of(head),
             g.k_head_dim, job.rows + uint64_t{head} * job.tokens.most,
             reinterpret_cast<float*>(scratch)});
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_diff = {Run, ScratchBytes, nullptr};

}  // namespace kvevict::cpu
