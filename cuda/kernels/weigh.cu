// Multiplies scores by the caller's weights.
//
// Grid (n_tokens / 256 of the longest layer, n_kv_heads, n_layers). A thread
// owns one slot. Reads 8 bytes per score and writes 4.
#include "weigh.h"

#include "counts.cuh"
#include "weigh.cuh"

namespace kvevict::cuda {

KV_KERNEL(weigh_scores, WeighParams, kWeighThreads, 1) {
  const WeighLayer& layer = p.layers[blockIdx.z];
  const uint64_t head = blockIdx.y;
  const uint32_t slot = blockIdx.x * kWeighThreads + threadIdx.x;
  if (slot >=
      CountOf(p.tokens, layer.first_count, blockIdx.y, layer.n_tokens)) {
    return;
  }
  const uint64_t score =
      layer.scores + (head * layer.n_tokens + slot) * sizeof(float);
  const float weight = LoadGlobal<float>(
      layer.weights + (head * p.weight_head_stride + slot) * sizeof(float));
  StoreGlobal(score, Weighed(LoadGlobal<float>(score), p.epsilon, weight));
}

}  // namespace kvevict::cuda
