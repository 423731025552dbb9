#include "cuda/fill_scores.h"
#include "cuda/kernels/fill_scores.h"
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status RunRandom(const Context& context, Stream stream, const ScoreArgs& args) {
  FillScoresParams p{};
  p.seed = args.policy.seed;
  return FillScores(context, stream, args, KernelId::random_scores,
                    &ScoreJob::caller, p);
}

}  // namespace

const ScoreOp kOp_score_random = {RunRandom, Op<ScoreArgs>::NoScratch,
                                  CheckFill};

}  // namespace kvevict::cuda
