// Arguments and launch shape of rotate_rows.cu.
#ifndef KVEVICT_CUDA_KERNELS_ROTATE_ROWS_H_
#define KVEVICT_CUDA_KERNELS_ROTATE_ROWS_H_

#include "params.h"

namespace kvevict::cuda {

struct RotateLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t offsets;      // i32 [n_lists, n_tokens]: positions, or slots
  uint32_t n_tokens;
  int32_t first_count;  // index in RotateParams::tokens
};
static_assert(sizeof(RotateLayer) == 32);

struct RotateParams {
  static constexpr uint32_t kMaxLayers = 56;
  static constexpr uint32_t kMaxPairs = 256;
  CacheRows keys;     // head_dim, lanes and wide are not read
  CountTable tokens;  // per KV head
  uint32_t n_lists;   // 1 or n_kv_heads
  uint32_t n_pairs;
  uint32_t is_interleaved;    // 2f and 2f + 1 are one, else f and f + n_pairs
  uint32_t from_slots;        // offsets are the slots in which keys were
  uint64_t turns[kMaxPairs];  // 2^-64 turns per position
  RotateLayer layers[kMaxLayers];
};
static_assert(sizeof(RotateParams) <= 4096);

constexpr uint32_t kRotateThreads = 256;
// The rows of a block. A warp rotates one row after the other.
constexpr uint32_t kRotateRows = 4 * kRotateThreads / 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROTATE_ROWS_H_
