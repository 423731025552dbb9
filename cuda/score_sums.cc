#include "cuda/fill_scores.h"
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status Run(const Context& context, Stream stream, const ScoreArgs& args) {
  FillScoresParams p{};
  p.is_max = args.policy.group_reduce == KVEVICT_REDUCE_MAX;
  p.divides = args.policy.window_reduce == KVEVICT_REDUCE_MEAN;
  return FillScores(context, stream, args, KernelId::sum_scores,
                    &ScoreJob::sums, p);
}

}  // namespace

const ScoreOp kOp_score_sums = {Run, NoScratch, nullptr, CheckFill};

}  // namespace kvevict::cuda
