// Scores by shares of squared norms, from the norms of row_norm.cu; see
// core/kernels/cur.h. Sums have a fixed order.
#include "cur.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

constexpr uint32_t kCurWarps = kCurThreads / 32;

struct CurHead {
  uint32_t n_tokens;
  uint64_t scores;       // f32 [n_tokens]
  uint64_t value_norms;  // likewise
  uint64_t sums;         // f32, one per block of cur_shares

  KV_DEVICE CurHead(const CurParams& p, const CurLayer& layer, uint32_t head)
      : n_tokens(CountOf(p.tokens, layer.first_count, head, layer.n_tokens)) {
    const uint64_t row = uint64_t{head} * layer.n_tokens * sizeof(float);
    scores = layer.scores + row;
    value_norms = layer.value_norms + row;
    sums = layer.sums +
           uint64_t{head} * CurBlocks(layer.n_tokens, p.window) * sizeof(float);
  }
};

KV_DEVICE float CurInverse(float sum) {
  return sum >= ToFloat<kF32>(0x00800000u) ? 1.0f / sum : 0.0f;
}

// Both squared norms of a token; NaN if one is not finite.
struct CurSquares {
  float key;
  float value;

  KV_DEVICE CurSquares(const CurHead& head, uint32_t slot) {
    const uint64_t offset = uint64_t{slot} * sizeof(float);
    key = LoadGlobal<float>(head.scores + offset);
    value = LoadGlobal<float>(head.value_norms + offset);
    key *= key;
    value *= value;
  }
  KV_DEVICE bool AreFinite() const {
    const float most = ToFloat<kF32>(0x7f7fffffu);
    return key <= most && value <= most;
  }
};

// Grid (CurBlocks() of the longest layer, n_kv_heads, n_layers). A warp has a
// window. Norms become products of shares in place, and the block's sum is left
// for cur_scale. Reads 16 bytes per token, 8 of them from a cache, and writes
// 4.
KV_KERNEL(cur_shares, CurParams, kCurThreads, 4) {
  KV_SHARED(float, sums, kCurWarps);
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  const CurHead head(p, p.layers[blockIdx.z], blockIdx.y);
  const uint64_t first =
      (uint64_t{blockIdx.x} * kCurWarps + warp) * uint64_t{p.window};
  const uint64_t end = first + p.window < head.n_tokens
                           ? first + p.window
                           : uint64_t{head.n_tokens};
  float k_sum = 0.0f;
  float v_sum = 0.0f;
  for (uint64_t slot = first + lane; slot < end; slot += 32) {
    const CurSquares squares(head, static_cast<uint32_t>(slot));
    if (!squares.AreFinite()) continue;
    k_sum += squares.key;
    v_sum += squares.value;
  }
  const float k_scale = CurInverse(SumOverLanes(k_sum, 32));
  const float v_scale = CurInverse(SumOverLanes(v_sum, 32));
  float sum = 0.0f;
  for (uint64_t slot = first + lane; slot < end; slot += 32) {
    const CurSquares squares(head, static_cast<uint32_t>(slot));
    const float share = (squares.key * k_scale) * (squares.value * v_scale);
    const bool counts = squares.AreFinite();
    sum += counts ? share : 0.0f;
    StoreGlobal(head.scores + slot * sizeof(float),
                counts ? share : ToFloat<kF32>(kNaNBits));
  }
  sum = SumOverLanes(sum, 32);
  if (lane == 0) sums[warp] = sum;
  BlockSync();
  if (threadIdx.x != 0 || first >= head.n_tokens) return;
  for (uint32_t w = 1; w < kCurWarps; ++w) sum += sums[w];
  StoreGlobal(head.sums + uint64_t{blockIdx.x} * sizeof(float), sum);
}

// Grid (n_tokens / kCurScaleTokens of the longest layer, n_kv_heads, n_layers).
// Every block adds up the head's sums, then scales its tokens. Reads and writes
// 4 bytes per token.
KV_KERNEL(cur_scale, CurParams, kCurScaleThreads, 4) {
  KV_SHARED(float, sums, kCurScaleThreads / 32);
  const CurHead head(p, p.layers[blockIdx.z], blockIdx.y);
  const uint64_t first = uint64_t{blockIdx.x} * kCurScaleTokens;
  if (first >= head.n_tokens) return;
  const uint32_t n_sums = CurBlocks(head.n_tokens, p.window);
  float sum = 0.0f;
  for (uint32_t i = threadIdx.x; i < n_sums; i += kCurScaleThreads) {
    sum += LoadGlobal<float>(head.sums + uint64_t{i} * sizeof(float));
  }
  sum = SumOverLanes(sum, 32);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  BlockSync();
  sum = sums[0];
  for (uint32_t w = 1; w < kCurScaleThreads / 32; ++w) sum += sums[w];
  const float scale = CurInverse(sum);
  const uint64_t end = first + kCurScaleTokens < head.n_tokens
                           ? first + kCurScaleTokens
                           : uint64_t{head.n_tokens};
  for (uint64_t slot = first + threadIdx.x; slot < end;
       slot += kCurScaleThreads) {
    const uint64_t score = head.scores + slot * sizeof(float);
    StoreGlobal(score,
                slot < p.n_sink ? 1.0f : LoadGlobal<float>(score) * scale);
  }
}

}  // namespace kvevict::cuda
