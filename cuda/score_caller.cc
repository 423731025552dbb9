#include "cuda/fill_scores.h"
#include "cuda/kernels/fill_scores.h"
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status RunCaller(const Context& context, Stream stream, const ScoreArgs& args) {
  FillScoresParams p{};
  p.half_life = args.policy.half_life;
  return FillScores(context, stream, args, KernelId::caller_scores,
                    &ScoreJob::caller, p);
}

}  // namespace

const ScoreOp kOp_score_caller = {RunCaller, Op<ScoreArgs>::NoScratch,
                                  CheckFill};

}  // namespace kvevict::cuda
