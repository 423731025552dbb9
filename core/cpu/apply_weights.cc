// Multiplies shaped scores by weights.
#include <algorithm>

#include "core/cpu/row_runs.h"
#include "core/kernels/row_norm.h"
#include "core/kernels/weigh.h"

namespace kvevict::cpu {
namespace {

float* ScoresOf(const ShapeJob& job, uint32_t head) {
  return job.scores + uint64_t{head} * job.scored->tokens.most;
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
    WeighScores(
        context.simd(),
        job.scored->weights.data + head * job.scored->weights.head_stride,
        job.scored->tokens.Of(head), epsilon, ScoresOf(job, head));
  });
}

// The weight of a head's slot as a share of those of all heads that hold its
// token. A head that does not hold it counts with their mean.
float ShareOfHeads(const ShapeJob& job, uint32_t n_heads, uint32_t head,
                   uint32_t slot) {
  const SlotPositions& slots = job.scored->slots;
  const auto list = [&](uint32_t h) { return slots.n_lists == 1 ? 0 : h; };
  const int32_t position = slots.PositionOf(list(head), slot);
  float sum = 0.0f;
  uint32_t n = 0;
  for (uint32_t h = 0; h < n_heads; ++h) {
    const int64_t at =
        h == head ? slot
                  : slots.SlotOf(list(h), position, job.scored->tokens.Of(h));
    if (at < 0) continue;
    sum += job.scored->weights.data[h * job.scored->weights.head_stride +
                                    static_cast<uint64_t>(at)];
    ++n;
  }
  if (sum == 0.0f) return 0.0f;
  if (n < n_heads) {
    sum *= static_cast<float>(n_heads) / static_cast<float>(n);
  }
  return job.scored->weights
             .data[head * job.scored->weights.head_stride + slot] /
         sum;
}

// Weights by shares of the caller's numbers. A work item is a layer and KV
// head.
void WeighByShares(const Context& context, const ApplyWeightsArgs& args,
                   float epsilon) {
  constexpr uint32_t kRun = 256;
  ForEachHead(context, args, [&](const ShapeJob& job, uint32_t head, uint32_t) {
    const uint32_t n_tokens = job.scored->tokens.Of(head);
    float shares[kRun];
    for (uint32_t first = 0; first < n_tokens; first += kRun) {
      const uint32_t n = std::min(kRun, n_tokens - first);
      for (uint32_t i = 0; i < n; ++i) {
        shares[i] = ShareOfHeads(job, args.layer.n_kv_heads, head, first + i);
      }
      WeighScores(context.simd(), shares, n, epsilon,
                  ScoresOf(job, head) + first);
    }
  });
}

Status RunApplyWeights(const Context& context, Stream,
                       const ApplyWeightsArgs& args) {
  const auto epsilon = static_cast<float>(args.policy.epsilon);
  if (args.policy.weight == ValueWeight::kNorm) {
    WeighByNorms(context, args, epsilon);
  } else if (args.policy.share == WeightShare::kHeads) {
    WeighByShares(context, args, epsilon);
  } else {
    WeighByGiven(context, args, epsilon);
  }
  return Status();
}

}  // namespace

const Op<ApplyWeightsArgs> kOp_apply_weights = {RunApplyWeights};

}  // namespace kvevict::cpu
