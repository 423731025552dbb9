// Launch shape of key_filter.cu.
#ifndef KVEVICT_CUDA_KERNELS_KEY_FILTER_H_
#define KVEVICT_CUDA_KERNELS_KEY_FILTER_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kFilterThreads = 256;
// The rows that a thread loads at once.
constexpr uint32_t kFilterRows = 4;

// Rows of a block.
constexpr uint32_t KeyFilterBlockRows(uint32_t lanes) {
  return kFilterThreads / lanes * kFilterRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_FILTER_H_
