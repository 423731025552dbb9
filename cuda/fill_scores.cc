#include "cuda/fill_scores.h"

#include "cuda/kernels/fill_scores.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

Status CheckFill(const Context& context, Stream stream, const ScoreArgs&) {
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  return Require(context, stream, ModuleId::fill_scores);
}

Status FillScores(const Context& context, Stream stream, const ScoreArgs& args,
                  KernelId kernel, FillScoresParams p) {
  p.n_kv_heads = args.layer.n_kv_heads;
  return ForEachBatch(
      args.jobs, FillScoresParams::kMaxLayers,
      [](const ScoreJob& a, const ScoreJob& b) {
        return a.slots.n_lists == b.slots.n_lists &&
               InOneTable(a.tokens, b.tokens) &&
               InOneTable(a.slots.n_kept, b.slots.n_kept) &&
               a.caller_head_stride == b.caller_head_stride;
      },
      [&](Jobs<ScoreJob> batch) {
        const Counts tokens(batch.front().tokens);
        const Counts kept(batch.front().slots.n_kept);
        p.tokens = tokens.table();
        p.kept = kept.table();
        p.n_lists = batch.front().slots.n_lists;
        p.caller_head_stride = batch.front().caller_head_stride;
        for (size_t i = 0; i < batch.size(); ++i) {
          const ScoreJob& job = batch[i];
          p.layers[i] = {AddressOf(job.rows),
                         AddressOf(job.caller),
                         ParamsOf(job.slots, kept),
                         job.tokens.most,
                         job.layer,
                         tokens.FirstOf(job.tokens),
                         0};
        }
        return Launch(context, stream, kernel,
                      {BlocksFor(LongestOf(batch), kFillThreads), p.n_kv_heads,
                       Size(batch), kFillThreads},
                      p);
      });
}

}  // namespace kvevict::cuda
