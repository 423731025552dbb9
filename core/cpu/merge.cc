// Merging. A work item is a layer and KV head.
#include "core/kernels/merge.h"

#include <algorithm>

#include "core/cpu/cpu.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

// The kernels' enumerator.
MergeRule ToMergeRule(kvevict_merge merge) {
  return merge == KVEVICT_MERGE_PIVOT      ? MergeRule::kPivot
         : merge == KVEVICT_MERGE_WEIGHTED ? MergeRule::kWeighted
                                           : MergeRule::kValues;
}

ScratchNeeds MergeScratch(const Context& context, const MergeArgs::Size& size) {
  return SharesOf(context,
                  CheckedSize(MergeScratchBytes(size.n_tokens, size.k_head_dim,
                                                size.v_head_dim)));
}

Status RunMerge(const Context& context, Stream, const MergeArgs& args) {
  uint32_t n_heads = 0;
  for (const MoveJob& job : args.jobs) {
    n_heads = std::max(n_heads, job.view->n_kv_heads);
  }
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t worker) {
    const MoveJob& job = args.jobs[item / n_heads];
    const kvevict_view& view = *job.view;
    const uint32_t head = item % n_heads;
    if (head >= view.n_kv_heads || !job.merge.Merges()) return;
    MergeRowsArgs rows;
    rows.keys = HeadRows(view, view.k, head);
    rows.n_tokens = job.tokens.Of(head);
    rows.key_dim = view.k.head_dim;
    if (IsPresent(view.v)) {
      rows.values = HeadRows(view, view.v, head);
      rows.value_dim = view.v.head_dim;
    }
    rows.keep = job.keep.ListOf(head);
    rows.n_keep = job.keep.CountOf(head);
    rows.rule = ToMergeRule(job.merge.rule);
    rows.threshold = static_cast<float>(job.merge.threshold);
    rows.quantile = static_cast<float>(1.0 - job.merge.fraction);
    rows.scratch = ShareOf(context, args.scratch, worker).data();
    MergeRows(context.simd(), rows);
  });
  return Status();
}

}  // namespace

const Op<MergeArgs> kOp_merge = {RunMerge, MergeScratch};

}  // namespace kvevict::cpu
