// Arguments and launch shape of key_filter.cu.
#ifndef KVEVICT_CUDA_KERNELS_KEY_FILTER_H_
#define KVEVICT_CUDA_KERNELS_KEY_FILTER_H_

#include "params.h"

namespace kvevict::cuda {

struct KeyFilterLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t filter;       // f32 [n_kv_heads, head_dim], head stride below
  uint64_t scores;       // out: f32 [n_kv_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in KeyFilterParams::tokens
};
static_assert(sizeof(KeyFilterLayer) == 40);

struct KeyFilterParams {
  static constexpr uint32_t kMaxLayers = 96;
  CacheRows keys;
  CountTable tokens;            // per KV head
  uint64_t filter_head_stride;  // elements
  uint32_t n_kv_heads;
  uint32_t reserved;
  KeyFilterLayer layers[kMaxLayers];
};
static_assert(sizeof(KeyFilterParams) <= 4096);

constexpr uint32_t kFilterThreads = 256;
// The rows that a thread loads at once.
constexpr uint32_t kFilterRows = 4;

// Rows of a block.
constexpr uint32_t KeyFilterBlockRows(uint32_t lanes) {
  return kFilterThreads / lanes * kFilterRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_FILTER_H_
