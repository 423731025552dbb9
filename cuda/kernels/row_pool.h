// Arguments of row_pool.cu.
#ifndef KVEVICT_CUDA_KERNELS_ROW_POOL_H_
#define KVEVICT_CUDA_KERNELS_ROW_POOL_H_

#include "params.h"

namespace kvevict::cuda {

// One layer, whose rows fill the scratch.
struct RowPoolParams {
  uint64_t rows;     // f32 [n_kv_heads, group, window, n_tokens]
  uint64_t factors;  // f32 [n_kv_heads, group, window]; 0: rows are not scaled
  uint64_t out;      // f32 [n_kv_heads, n_tokens]
  uint64_t masses;   // f32, shaped like `out`: the sum of the rows; 0: none
  CountTable tokens;
  int32_t first_count;
  uint32_t n_tokens;
  uint32_t group;
  uint32_t window;
  uint32_t n_unpooled;  // last slots, which are left out
  uint32_t kernel;      // 1: no pooling
  uint32_t pool_is_max;
  uint32_t edge_shrinks;  // average: divide by the terms inside
  uint32_t rows_are_max;  // rows are reduced to their maximum
  uint32_t heads_are_max;
  float row_scale;     // factor of a sum of rows
  float head_scale;    // of heads
  float mass_divisor;  // of a sum of the rows of all heads
};
static_assert(sizeof(RowPoolParams) <= 4096);

constexpr uint32_t kRowPoolThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROW_POOL_H_
