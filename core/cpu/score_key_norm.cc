// Scores by the norms of keys. A work item is some tokens of a layer.
#include "core/cpu/row_runs.h"
#include "core/kernels/row_norm.h"

namespace kvevict::cpu {
namespace {

Status RunKeyNorm(const Context& context, Stream, const ScoreArgs& args) {
  const uint32_t head_dim = args.layer.k_head_dim;
  ForEachRowRun(
      context, args, &kvevict_view::k,
      [&](const ScoreJob& job, const RowRun& run, uint32_t) {
        float* const scores = job.rows + uint64_t{run.head} * job.tokens.most;
        ComputeRowNorms(context.simd(), {run.rows, run.first, run.n, head_dim,
                                         true, scores + run.first, run.heads});
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_norm = {RunKeyNorm};

}  // namespace kvevict::cpu
