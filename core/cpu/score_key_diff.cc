// Compares keys with their mean direction, all at once or block by block. A
// work item is a layer and KV head, or several adjacent heads.
#include <algorithm>

#include "core/cpu/cpu.h"
#include "core/cpu/row_runs.h"
#include "core/kernels/key_diff.h"
#include "core/policy/policy.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds KeyDiffScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  if (size.policy.block > 0) {
    return SharesOf(
        context, CheckedSize(KeyDiffBlocksBytes(g.k_head_dim, size.n_tokens)));
  }
  return SharesOf(context,
                  CheckedSize(KeyDiffScratchFloats(
                      std::min(g.n_kv_heads, kMostSideBySide), g.k_head_dim)) *
                      CheckedSize(sizeof(float)));
}

// Takes as many heads together as still leave every worker an item.
uint32_t HeadsAtOnce(const Context& context, const ScoreArgs& args) {
  for (const ScoreJob& job : args.jobs) {
    if (!LieSideBySide(*job.view, job.view->k, job.tokens)) return 1;
  }
  const auto n_jobs = static_cast<uint32_t>(args.jobs.size());
  const uint32_t n_items = (context.n_workers() + n_jobs - 1) / n_jobs;
  return std::max(1u, args.layer.n_kv_heads / n_items);
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

void ScoreAtOnce(const Context& context, const ScoreArgs& args) {
  const uint32_t n_heads = args.layer.n_kv_heads;
  const uint32_t n_at_once = HeadsAtOnce(context, args);
  const uint32_t n_groups = (n_heads + n_at_once - 1) / n_at_once;
  context.ParallelFor(static_cast<uint32_t>(args.jobs.size()) * n_groups,
                      [&](uint32_t item, uint32_t worker) {
                        const ScoreJob& job = args.jobs[item / n_groups];
                        const uint32_t head = item % n_groups * n_at_once;
                        ComputeKeyDiffs(
                            context.simd(),
                            {HeadRows(*job.view, job.view->k, head),
                             job.tokens.Of(head),
                             args.layer.k_head_dim,
                             job.rows + uint64_t{head} * job.tokens.most,
                             reinterpret_cast<float*>(
                                 ShareOf(context, args.scratch, worker).data()),
                             {std::min(n_at_once, n_heads - head),
                              job.view->k.head_stride_bytes, job.tokens.most}});
                      });
}

Status RunKeyDiff(const Context& context, Stream, const ScoreArgs& args) {
  if (args.policy.block == 0) {
    ScoreAtOnce(context, args);
    return Status();
  }
  ForEachHead(context, args,
              [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
                ScoreBlocks(context, args, job, head,
                            ShareOf(context, args.scratch, worker).data());
              });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_diff = {RunKeyDiff, KeyDiffScratch};

}  // namespace kvevict::cpu
