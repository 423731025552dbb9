#include "cuda/fill_scores.h"

#include "cuda/kernels/fill_scores.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

// The factor of the sum of rows that make a row of scores. A sum that was
// reduced already is split equally among its query heads.
float ScaleOf(const ScoreArgs& args, const FillScoresParams& p) {
  const bool is_mean =
      args.policy.group == KVEVICT_REDUCE_MEAN && p.n_sum_rows > p.n_score_rows;
  const bool is_part =
      args.policy.group == KVEVICT_REDUCE_SUM && p.n_sum_rows < p.n_score_rows;
  if (is_mean) return 1.0f / static_cast<float>(p.n_sum_rows);
  return is_part ? 1.0f / static_cast<float>(p.n_score_rows) : 1.0f;
}

}  // namespace

Status CheckFill(const Context& context, Stream stream, const ScoreArgs&) {
  KV_RETURN_IF_ERROR(RequireShaping(context, stream));
  return Require(context, stream, ModuleId::fill_scores);
}

Status FillScores(const Context& context, Stream stream, const ScoreArgs& args,
                  KernelId kernel, FloatRows ScoreJob::*rows,
                  FillScoresParams p) {
  p.n_kv_heads = args.layer.n_kv_heads;
  p.n_score_rows = args.n_rows() / p.n_kv_heads;
  return ForEachBatch(
      args.jobs, FillScoresParams::kMaxLayers,
      [rows](const ScoreJob& a, const ScoreJob& b) {
        return a.slots.n_lists == b.slots.n_lists &&
               InOneTable(a.tokens, b.tokens) &&
               InOneTable(a.slots.n_kept, b.slots.n_kept) &&
               (a.*rows).head_stride == (b.*rows).head_stride &&
               a.queries.n_rows == b.queries.n_rows &&
               a.n_sum_heads == b.n_sum_heads && a.n_summed == b.n_summed;
      },
      [&](Jobs<ScoreJob> batch) {
        const Counts tokens(batch.front().tokens);
        const Counts kept(batch.front().slots.n_kept);
        p.tokens = tokens.table();
        p.kept = kept.table();
        p.n_lists = batch.front().slots.n_lists;
        p.n_query_rows = batch.front().queries.n_rows;
        p.head_stride = (batch.front().*rows).head_stride;
        p.n_sum_rows = batch.front().n_sum_heads / p.n_kv_heads;
        p.n_summed = batch.front().n_summed;
        p.scale = ScaleOf(args, p);
        for (size_t i = 0; i < batch.size(); ++i) {
          const ScoreJob& job = batch[i];
          p.layers[i] = {AddressOf(job.rows),
                         AddressOf((job.*rows).data),
                         ParamsOf(job.slots, kept),
                         job.tokens.most,
                         job.layer,
                         tokens.FirstOf(job.tokens),
                         job.n_seen};
        }
        return Launch(context, stream, kernel,
                      {BlocksFor(LongestOf(batch), kFillThreads), args.n_rows(),
                       Size(batch), kFillThreads},
                      p);
      });
}

}  // namespace kvevict::cuda
