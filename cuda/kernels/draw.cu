// Divides scores by drawn numbers, with the bits of core/cpu/draw.cc.
#include "draw.h"

#include "device.cuh"
#include "random.cuh"
#include "slots.cuh"

namespace kvevict::cuda {

// Grid (n_tokens / 256 of the longest layer, n_kv_heads, n_layers). A thread
// owns one slot. Reads 4 bytes per score and writes 4, and reads 4 more where
// positions are listed.
KV_KERNEL(draw, DrawParams, kDrawThreads, 1) {
  const DrawLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t list = p.slot_lists == 1 ? 0 : head;
  const uint32_t slot = blockIdx.x * kDrawThreads + threadIdx.x;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  if (slot >= n_tokens) return;
  constexpr float kMost = 3.402823466e38f;
  const uint64_t address =
      layer.scores + (uint64_t{head} * layer.n_tokens + slot) * sizeof(float);
  const float score = LoadGlobal<float>(address);
  if (!(score > 0.0f && score <= kMost)) return;
  const auto position = [&](uint32_t at) {
    return static_cast<uint32_t>(PositionOf(layer.slots, p.kept, list, at));
  };
  const uint32_t n_seen =
      layer.slots.kept != 0 ? position(n_tokens - 1) + 1 : layer.n_seen;
  const float drawn = score / Exponential(RandomBits(p.seed, layer.layer, head,
                                                     n_seen, position(slot)));
  StoreGlobal(address, drawn <= kMost ? drawn : kMost);
}

}  // namespace kvevict::cuda
