// Multiplies scores by the caller's weights.
#include "weigh.h"

#include "counts.cuh"
#include "slots.cuh"
#include "weigh.cuh"

namespace kvevict::cuda {

namespace {

// The weight of a head's slot as a share of those of all heads that hold its
// token, as core/cpu/apply_weights.cc has it: the same bits.
KV_DEVICE float ShareOfHeads(const WeighParams& p, const WeighLayer& layer,
                             uint32_t head, uint32_t slot) {
  const auto weight = [&](uint32_t h, uint32_t at) {
    return LoadGlobal<float>(layer.weights +
                             (uint64_t{h} * p.weight_head_stride + at) *
                                 sizeof(float));
  };
  const auto list = [&](uint32_t h) { return p.slot_lists == 1 ? 0 : h; };
  const int32_t position = PositionOf(layer.slots, p.kept, list(head), slot);
  float sum = 0.0f;
  uint32_t n = 0;
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    const uint32_t n_tokens =
        CountOf(p.tokens, layer.first_count, h, layer.n_tokens);
    const uint32_t at =
        h == head ? slot
                  : SlotOf(layer.slots, p.kept, list(h), n_tokens, position);
    if (at >= n_tokens) continue;
    sum += weight(h, at);
    ++n;
  }
  if (sum == 0.0f) return 0.0f;
  if (n < p.n_kv_heads) {
    sum *= static_cast<float>(p.n_kv_heads) / static_cast<float>(n);
  }
  return weight(head, slot) / sum;
}

}  // namespace

// Grid (n_tokens / 256 of the longest layer, n_kv_heads, n_layers). A thread
// owns one slot. Reads 8 bytes per score, or the weights of all heads if they
// are shared, and writes 4.
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
  const float weight =
      p.shares != 0 ? ShareOfHeads(p, layer, blockIdx.y, slot)
                    : LoadGlobal<float>(layer.weights +
                                        (head * p.weight_head_stride + slot) *
                                            sizeof(float));
  StoreGlobal(score, Weighed(LoadGlobal<float>(score), p.epsilon, weight));
}

}  // namespace kvevict::cuda
