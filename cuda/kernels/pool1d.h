// Arguments and launch shapes of pool1d.cu.
#ifndef KVEVICT_CUDA_KERNELS_POOL1D_H_
#define KVEVICT_CUDA_KERNELS_POOL1D_H_

#include "params.h"

namespace kvevict::cuda {

struct PoolLayer {
  uint64_t rows;  // f32 [n_rows, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in PoolParams::tokens
};
static_assert(sizeof(PoolLayer) == 16);

struct PoolParams {
  static constexpr uint32_t kMaxLayers = 240;
  uint32_t n_rows;  // per layer; grid.x
  uint32_t kernel;  // odd, <= 1023; 1: no pooling
  uint32_t is_max;
  uint32_t edge_shrinks;  // average: divide by the terms inside
  uint32_t n_unpooled;    // the last ones become +infinity
  uint32_t n_terms;  // rows r * n_terms to (r + 1) * n_terms belong to list r
  CountTable tokens;
  PoolLayer layers[kMaxLayers];
};
static_assert(sizeof(PoolParams) <= 4096);

struct ReduceLayer {
  uint64_t in;   // f32 [n_out_rows, n_terms, n_tokens]
  uint64_t out;  // f32 [n_out_rows, n_tokens]; may be `in` if n_out_rows is 1
  uint32_t n_tokens;
  int32_t first_count;  // index in ReduceParams::tokens
};
static_assert(sizeof(ReduceLayer) == 24);

struct ReduceParams {
  static constexpr uint32_t kMaxLayers = 160;
  uint32_t n_out_rows;
  uint32_t n_terms;
  uint32_t is_max;
  float scale;          // factor of a sum: 1 / n_terms for a mean
  uint32_t n_unpooled;  // the last ones of `out` become +infinity
  uint32_t reserved;
  CountTable tokens;  // per out row
  ReduceLayer layers[kMaxLayers];
};
static_assert(sizeof(ReduceParams) <= 4096);

// pool_rows: grid (n_rows, n_layers), a block per row. With 256 threads all 288
// rows of an 8-head, 36-layer model run on an H200 at once.
constexpr uint32_t kPoolThreads = 256;
constexpr uint32_t kMaxPoolKernel = 1023;

// reduce_rows: grid (ReduceBlocks() of the longest layer, n_out_rows,
// n_layers).
constexpr uint32_t kReduceThreads = 256;
constexpr uint32_t kReduceColumns = 4;  // per thread
constexpr uint32_t ReduceBlocks(uint32_t n_tokens) {
  constexpr uint32_t kColumns = kReduceThreads * kReduceColumns;
  return (n_tokens + kColumns - 1) / kColumns;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_POOL1D_H_
