// Scores that need no keys: random ones, the caller's, or those from attention
// sums.
#ifndef KVEVICT_CUDA_FILL_SCORES_H_
#define KVEVICT_CUDA_FILL_SCORES_H_

#include "core/backend.h"
#include "core/status.h"
#include "cuda/kernels/fill_scores.h"
#include "cuda/module_cache.h"

namespace kvevict::cuda {

// See ScoreOp::check.
Status CheckFill(const Context& context, Stream stream, const ScoreArgs& args);

// Launches an entry of fill_scores.cu for all jobs, with the caller's rows if
// it reads any. `p` has what layers and these rows do not define.
Status FillScores(const Context& context, Stream stream, const ScoreArgs& args,
                  KernelId kernel, FloatRows ScoreJob::*rows,
                  FillScoresParams p);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_FILL_SCORES_H_
