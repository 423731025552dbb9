// Arguments and launch shapes of leverage.cu.
#ifndef KVEVICT_CUDA_KERNELS_LEVERAGE_H_
#define KVEVICT_CUDA_KERNELS_LEVERAGE_H_

#include "params.h"

namespace kvevict::cuda {

struct LeverageLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t rows;         // out: f32 [n_kv_heads, n_tokens]
  SlotPositions slots;
  uint32_t n_tokens;
  int32_t first_count;  // index in LeverageParams::tokens
};
static_assert(sizeof(LeverageLayer) == 56);

struct LeverageParams {
  static constexpr uint32_t kMaxLayers = 24;
  static constexpr uint32_t kMaxPairs = 256;
  CacheRows keys;     // lanes and wide are not read
  CountTable tokens;  // per KV head
  CountTable kept;    // of slots, per list
  uint64_t matrices;  // [n_layers, n_kv_heads] of LeverageDoubles()
  uint32_t n_kv_heads;
  uint32_t slot_lists;  // 1 if heads share their slots, else n_kv_heads
  uint32_t n_sink;      // slots at both ends, which score 0
  uint32_t n_recent;
  uint32_t n_pairs;
  uint32_t is_interleaved;    // 2f and 2f + 1 are one, else f and f + n_pairs
  uint64_t turns[kMaxPairs];  // 2^-64 turns per position
  LeverageLayer layers[kMaxLayers];
};
static_assert(sizeof(LeverageParams) <= 4096);

constexpr uint32_t kLeverageMostDim = 256;
// A block has a tile of the Gram matrix, or so many tokens.
constexpr uint32_t kLeverageTile = 32;
constexpr uint32_t kLeverageThreads = 256;
// Pairs of tiles on and above the diagonal.
constexpr uint32_t LeverageTiles(uint32_t head_dim) {
  const uint32_t n = (head_dim + kLeverageTile - 1) / kLeverageTile;
  return n * (n + 1) / 2;
}

// The doubles of a head: the Gram matrix, its factor, sums and means of the
// rows.
constexpr uint64_t LeverageDoubles(uint32_t head_dim) {
  return uint64_t{2} * head_dim * head_dim + uint64_t{2} * head_dim;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_LEVERAGE_H_
