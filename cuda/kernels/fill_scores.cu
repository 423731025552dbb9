// Scores that need no keys: random ones, the caller's, or those from attention
// sums.
//
// Grid (n_tokens / 256 of the longest layer, rows of scores, n_layers). A
// thread owns one slot. Rows are KV heads, or with sum_scores also query heads.
#include "fill_scores.h"

#include "decay.cuh"
#include "device.cuh"
#include "random.cuh"
#include "slots.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint32_t TokensOf(const FillScoresParams& p,
                            const FillScoresLayer& layer, uint32_t head) {
  return CountOf(p.tokens, layer.first_token_count, head, layer.n_tokens);
}

// Reduces n rows that are `stride` bytes apart, in the CPU's order. NaN in, NaN
// out.
KV_DEVICE float ReduceSums(const FillScoresParams& p, uint64_t rows,
                           uint64_t stride, uint32_t n) {
  float all = LoadGlobal<float>(rows);
#pragma unroll 4
  for (uint32_t r = 1; r < n; ++r) {
    const float one = LoadGlobal<float>(rows + r * stride);
    if (p.is_max == 0) {
      all += one;
    } else if (all == all && !(one < all)) {
      all = one;
    }
  }
  return p.is_max != 0 ? all : all * p.scale;
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
  uint32_t bits = LoadGlobal<uint32_t>(
      layer.rows + (head * p.head_stride + slot) * sizeof(float));
  if (p.half_life != 0) {
    const uint32_t position = static_cast<uint32_t>(
        PositionOf(layer.slots, p.kept, p.n_lists == 1 ? 0 : blockIdx.y, slot));
    const float score = ToFloat<kF32>(bits) *
                        DecayFactor(layer.n_seen - 1 - position, p.half_life);
    memcpy(&bits, &score, sizeof(bits));
  }
  StoreGlobal(layer.scores + (head * layer.n_tokens + slot) * sizeof(float),
              bits);
}

KV_KERNEL(sum_scores, FillScoresParams, kFillThreads, 1) {
  const FillScoresLayer& layer = p.layers[blockIdx.z];
  const uint32_t row = blockIdx.y;
  const uint32_t head = row / p.n_score_rows;
  const uint32_t slot = blockIdx.x * kFillThreads + threadIdx.x;
  if (slot >= TokensOf(p, layer, head)) return;
  const bool one_to_one = p.n_sum_rows == p.n_score_rows;
  // n_sum_rows 0: row 0 is for all heads.
  const uint64_t first = one_to_one ? row : uint64_t{head} * p.n_sum_rows;
  const uint64_t stride = p.head_stride * sizeof(float);
  float score = ReduceSums(
      p, layer.rows + first * stride + uint64_t{slot} * sizeof(float), stride,
      one_to_one ? 1 : p.n_sum_rows);
  if (p.divides != 0) {
    uint32_t n_queries;
    if (p.n_query_rows != 0) {
      n_queries = TokensOf(p, layer, head) - slot;
      if (n_queries > p.n_query_rows) n_queries = p.n_query_rows;
    } else {
      n_queries = layer.n_seen -
                  static_cast<uint32_t>(PositionOf(
                      layer.slots, p.kept, p.n_lists == 1 ? 0 : head, slot));
      if (n_queries > p.n_summed) n_queries = p.n_summed;
    }
    score /= static_cast<float>(n_queries);
  }
  StoreGlobal(
      layer.scores + (uint64_t{row} * layer.n_tokens + slot) * sizeof(float),
      score);
}

}  // namespace kvevict::cuda
