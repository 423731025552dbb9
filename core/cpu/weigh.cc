// Weights on shaped scores: an item is a layer and KV head.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/row_norm.h"
#include "core/kernels/weigh.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

// By the norms of a head's value rows, of some tokens at a time.
void WeighByNorms(const Context& context, const RowSource& values,
                  uint32_t head_dim, uint32_t n_tokens, float epsilon,
                  float* scores) {
  constexpr uint32_t kAtOnce = 64;
  float norms[kAtOnce];
  for (uint32_t first = 0; first < n_tokens; first += kAtOnce) {
    const uint32_t n = std::min(kAtOnce, n_tokens - first);
    ComputeRowNorms(context.simd(), {values, first, n, head_dim, false, norms});
    WeighScores(context.simd(), norms, n, epsilon, scores + first);
  }
}

}  // namespace

Status Run_weigh(const Context& context, Stream, const WeighArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  const auto epsilon = static_cast<float>(args.policy.weight_epsilon);
  ForEachHead(context, args, [&](const ShapeJob& job, uint32_t head, uint32_t) {
    const uint32_t n_tokens = job.tokens.Of(head);
    float* const scores = job.scores + uint64_t{head} * job.tokens.most;
    if (args.policy.value_weight == KVEVICT_VALUE_WEIGHT_NORM) {
      WeighByNorms(context, HeadRows(*job.view, job.view->v, head),
                   g.v_head_dim, n_tokens, epsilon, scores);
    } else {
      WeighScores(context.simd(),
                  job.weights.data + head * job.weights.head_stride, n_tokens,
                  epsilon, scores);
    }
  });
  return Status();
}

}  // namespace kvevict::cpu
