// Multiplies shaped scores by weights.
#include "core/cpu/row_runs.h"
#include "core/kernels/row_norm.h"
#include "core/kernels/weigh.h"

namespace kvevict::cpu {
namespace {

float* ScoresOf(const ShapeJob& job, uint32_t head) {
  return job.scores + uint64_t{head} * job.tokens.most;
}

// Weights by the norms of value rows. A work item is some tokens.
void WeighByNorms(const Context& context, const ApplyWeightsArgs& args,
                  float epsilon) {
  const uint32_t head_dim = args.layer.v_head_dim;
  ForEachRowRun(
      context, args, &kvevict_view::v,
      [&](const ShapeJob& job, const RowRun& run, uint32_t) {
        float norms[kMostRowsOfRun];
        SideBySide heads = run.heads;
        heads.out_stride = run.n;
        ComputeRowNorms(context.simd(), {run.rows, run.first, run.n, head_dim,
                                         false, norms, heads});
        for (uint32_t head = 0; head < heads.n_heads; ++head) {
          WeighScores(context.simd(), norms + head * run.n, run.n, epsilon,
                      ScoresOf(job, run.head + head) + run.first);
        }
      });
}

// Weights by the caller's numbers. A work item is a layer and KV head.
void WeighByGiven(const Context& context, const ApplyWeightsArgs& args,
                  float epsilon) {
  ForEachHead(context, args, [&](const ShapeJob& job, uint32_t head, uint32_t) {
    WeighScores(context.simd(),
                job.weights.data + head * job.weights.head_stride,
                job.tokens.Of(head), epsilon, ScoresOf(job, head));
  });
}

Status RunApplyWeights(const Context& context, Stream,
                       const ApplyWeightsArgs& args) {
  const auto epsilon = static_cast<float>(args.policy.epsilon);
  if (args.policy.weight == ValueWeight::kNorm) {
    WeighByNorms(context, args, epsilon);
  } else {
    WeighByGiven(context, args, epsilon);
  }
  return Status();
}

}  // namespace

const Op<ApplyWeightsArgs> kOp_apply_weights = {RunApplyWeights};

}  // namespace kvevict::cpu
