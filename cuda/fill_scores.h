// Scores that do not come from keys: drawn, or the caller's.
#ifndef KVEVICT_CUDA_FILL_SCORES_H_
#define KVEVICT_CUDA_FILL_SCORES_H_

#include "core/backend.h"
#include "core/status.h"
#include "cuda/kernels/params.h"
#include "cuda/module_cache.h"

namespace kvevict::cuda {

// See ScoreOp::check.
Status CheckFill(const Context& context, Stream stream, const ScoreArgs& args);

// Launches an entry of fill_scores.cu for all jobs, with `p` but for heads and
// layers.
Status FillScores(const Context& context, Stream stream, const ScoreArgs& args,
                  KernelId kernel, FillScoresParams p);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_FILL_SCORES_H_
