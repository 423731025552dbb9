// Launch shape of attention_sums.cu.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_SUMS_H_
#define KVEVICT_CUDA_KERNELS_ATTENTION_SUMS_H_

#include "params.h"

namespace kvevict::cuda {

// Grid (any number of blocks, rows of sums, n_layers).
constexpr uint32_t kAddSumsThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_SUMS_H_
