// Launch shape of row_norm.cu.
#ifndef KVEVICT_CUDA_KERNELS_ROW_NORM_H_
#define KVEVICT_CUDA_KERNELS_ROW_NORM_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kNormThreads = 256;
// The rows that a thread loads at once.
constexpr uint32_t kNormRows = 4;

// Rows of a block.
constexpr uint32_t NormBlockRows(uint32_t lanes) {
  return kNormThreads / lanes * kNormRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROW_NORM_H_
