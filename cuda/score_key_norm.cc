// Scores by negative norms of keys: the smallest norm ranks first.
#include "cuda/alignment.h"
#include "cuda/ops.h"
#include "cuda/row_norms.h"

namespace kvevict::cuda {
namespace {

Status CheckKeyNorm(const Context& context, Stream stream,
                    const ScoreArgs& args) {
  return CheckReading(context, stream, args, {ModuleId::row_norm});
}

Status RunKeyNorm(const Context& context, Stream stream,
                  const ScoreArgs& args) {
  return LaunchRowNorms(context, stream, args.jobs, &kvevict_view::k,
                        &ScoreJob::rows, {});
}

}  // namespace

const ScoreOp kOp_score_key_norm = {RunKeyNorm, Op<ScoreArgs>::NoScratch,
                                    CheckKeyNorm};

}  // namespace kvevict::cuda
