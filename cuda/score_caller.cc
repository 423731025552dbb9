#include "cuda/fill_scores.h"
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status Run(const Context& context, Stream stream, const ScoreArgs& args) {
  return FillScores(context, stream, args, KernelId::caller_scores,
                    &ScoreJob::caller, {});
}

}  // namespace

const ScoreOp kOp_score_caller = {Run, Op<ScoreArgs>::NoScratch, CheckFill};

}  // namespace kvevict::cuda
