// Arguments and launch shapes of lag.cu.
#ifndef KVEVICT_CUDA_KERNELS_LAG_H_
#define KVEVICT_CUDA_KERNELS_LAG_H_

#include "params.h"

namespace kvevict::cuda {

// Keys, or values.
struct LagRows {
  CacheRows rows;      // `wide` and `lanes` are not used
  float mean_scale;    // 1 / head_dim
  float spread_scale;  // log2(e)^2 / (head_dim - 1), or 0
};
static_assert(sizeof(LagRows) == 224);

struct LagLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t values;       // likewise
  uint64_t block_table;  // i32; paged rows only
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in LagParams::tokens
};
static_assert(sizeof(LagLayer) == 40);

struct LagParams {
  static constexpr uint32_t kMaxLayers = 90;
  LagRows keys;
  LagRows values;
  CountTable tokens;  // per KV head
  // f32 [LagScratchRows(), n_layers, n_kv_heads, scratch_stride]
  uint64_t scratch;
  uint32_t scratch_stride;  // tokens of the longest layer
  uint32_t n_layers;
  uint32_t n_kv_heads;
  uint32_t n_sink;
  uint32_t partition;
  float rank_scale;  // 1 / partition; 0: scores are the means, not the ranks
  LagLayer layers[kMaxLayers];
};
static_assert(sizeof(LagParams) <= 4096);

constexpr uint32_t kLagThreads = 256;
constexpr uint32_t kLagRankThreads = 128;
// Channels whose sums are added up before those of the next ones, as in
// core/kernels/lag.cc.
constexpr uint32_t kLagPieceDims = 128;

// The number of whole partitions after the sinks.
constexpr uint32_t LagPartitions(uint32_t n_tokens, uint32_t n_sink,
                                 uint32_t partition) {
  return n_tokens < n_sink ? 0 : (n_tokens - n_sink) / partition;
}

// Rows of floats that lag_spreads needs per layer and KV head, n_tokens each.
constexpr uint32_t LagScratchRows(uint32_t k_head_dim, uint32_t v_head_dim) {
  return k_head_dim <= kLagPieceDims && v_head_dim <= kLagPieceDims ? 1 : 3;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_LAG_H_
