// Scores that do not come from attention: drawn, or the caller's.
//
// Grid (n_tokens / 256 of the longest layer, n_kv_heads, n_layers); a thread
// owns one slot.
#include "fill_scores.h"

#include "device.cuh"
#include "slots.cuh"

namespace kvevict::cuda {

namespace {

// The finaliser of splitmix64.
KV_DEVICE uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The bits of RandomScore() in core/signals/random.cc.
KV_DEVICE float RandomScore(uint64_t seed, uint32_t layer, uint32_t head,
                            uint32_t position) {
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;
  uint64_t z = Mix(seed + kStep);
  z = Mix(z + ((uint64_t{layer} << 32) | head) * kStep + kStep);
  z = Mix(z + position * kStep + kStep);
  return static_cast<float>(static_cast<uint32_t>(z >> 40)) * 0x1p-24f;
}

KV_DEVICE uint32_t TokensOf(const FillScoresParams& p,
                            const FillScoresLayer& layer, uint32_t head) {
  return CountOf(p.tokens, layer.first_token_count, head, layer.n_tokens);
}

}  // namespace

KV_KERNEL(random_scores, FillScoresParams, kFillThreads, 1) {
  const FillScoresLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t slot = blockIdx.x * kFillThreads + threadIdx.x;
  if (slot >= TokensOf(p, layer, head)) return;
  const int32_t position =
      PositionOf(layer.slots, p.kept, p.n_lists == 1 ? 0 : head, slot);
  StoreGlobal(
      layer.scores + (uint64_t{head} * layer.n_tokens + slot) * sizeof(float),
      RandomScore(p.seed, layer.layer, head, static_cast<uint32_t>(position)));
}

KV_KERNEL(caller_scores, FillScoresParams, kFillThreads, 1) {
  const FillScoresLayer& layer = p.layers[blockIdx.z];
  const uint64_t head = blockIdx.y;
  const uint32_t slot = blockIdx.x * kFillThreads + threadIdx.x;
  if (slot >= TokensOf(p, layer, blockIdx.y)) return;
  const uint32_t bits = LoadGlobal<uint32_t>(
      layer.caller + (head * p.caller_head_stride + slot) * sizeof(float));
  StoreGlobal(layer.scores + (head * layer.n_tokens + slot) * sizeof(float),
              bits);
}

}  // namespace kvevict::cuda
