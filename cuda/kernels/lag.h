// Arguments and launch shapes of lag.cu.
#ifndef KVEVICT_CUDA_KERNELS_LAG_H_
#define KVEVICT_CUDA_KERNELS_LAG_H_

#include "params.h"

namespace kvevict::cuda {

// Keys, or values.
struct LagRows {
  CacheRows rows;      // `lanes` is not used
  float mean_scale;    // 1 / head_dim
  float spread_scale;  // log2(e)^2 / (head_dim - 1), or 0
  uint32_t is_kept;    // in shared memory, of LagKeptBytes() for each block
  uint32_t reserved;
};
static_assert(sizeof(LagRows) == 232);

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
  static constexpr uint32_t kMaxLayers = 89;
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
  uint32_t run;      // partitions that have one after them of a block
  float rank_scale;  // 1 / partition; 0: scores are the means, not the ranks
  LagLayer layers[kMaxLayers];
};
static_assert(sizeof(LagParams) <= 4096);

constexpr uint32_t kLagThreads = 256;
constexpr uint32_t kLagRankThreads = 128;
// Channels whose sums are added up before those of the next ones, as in
// core/kernels/lag.cc.
constexpr uint32_t kLagPieceDims = 128;

// How a piece of kept rows lies in shared memory: in pairs with a gap between the
// two, which a warp reads at once, so that they are in different banks.
struct LagPairs {
  uint32_t second_row;  // bytes from the first one
  uint32_t bytes;
};
constexpr LagPairs LagPairsOf(const CacheRows& rows) {
  const uint32_t dims =
      rows.head_dim < kLagPieceDims ? rows.head_dim : kLagPieceDims;
  const uint32_t element = rows.dtype == kF32 ? 4 : 2;
  return {(dims + 16) * element, (2 * dims + 16) * element};
}

// The dynamic shared memory of a block that keeps a partition of rows and the
// next one; 0 if these rows cannot be kept, or not in `most` bytes.
constexpr uint32_t LagKeptBytes(const CacheRows& rows, uint32_t partition,
                                uint32_t most) {
  const bool is_plain = (kPlainDTypes >> rows.dtype & 1) != 0;
  if (!is_plain || rows.wide == 0) return 0;
  const uint64_t n_pairs = uint64_t{2} * (partition / 2 + partition % 2);
  const uint64_t bytes = n_pairs * LagPairsOf(rows).bytes;
  return bytes <= most ? static_cast<uint32_t>(bytes) : 0;
}

// The most dynamic shared memory of a block, beside 10 KiB of static memory and
// what the system takes; 0 before sm_80, which cannot copy to it asynchronously.
constexpr uint32_t MostLagBytes(uint32_t sm) {
  return sm < 80 ? 0 : (SharedKilobytes(sm) - 11) * 1024;
}

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
