#include "cuda/fill_scores.h"

#include "cuda/kernels/fill_scores.h"
#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

Status FillScores(const Context& context, Stream stream, const ScoreArgs& args,
                  KernelId kernel, FillScoresParams p) {
  p.n_kv_heads = args.geometry.n_kv_heads;
  return ForEachBatch(
      args.jobs, FillScoresParams::kMaxLayers,
      [](const ScoreJob& a, const ScoreJob& b) {
        return a.slots.n_lists == b.slots.n_lists &&
               a.caller_head_stride == b.caller_head_stride;
      },
      [&](Jobs<ScoreJob> batch) {
        p.n_lists = batch.front().slots.n_lists;
        p.caller_head_stride = batch.front().caller_head_stride;
        for (size_t i = 0; i < batch.size(); ++i) {
          const ScoreJob& job = batch[i];
          p.layers[i] = {AddressOf(job.rows), AddressOf(job.caller),
                         ParamsOf(job.slots), job.n_tokens, job.layer};
        }
        return Launch(context, stream, kernel,
                      {BlocksFor(LongestOf(batch), kFillThreads), p.n_kv_heads,
                       Size(batch), kFillThreads},
                      p);
      });
}

}  // namespace kvevict::cuda
