// Launch shapes of pool1d.cu.
#ifndef KVEVICT_CUDA_KERNELS_POOL1D_H_
#define KVEVICT_CUDA_KERNELS_POOL1D_H_

#include "params.h"

namespace kvevict::cuda {

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
