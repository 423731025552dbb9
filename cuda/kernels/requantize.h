// Launch shape of requantize.cu.
#ifndef KVEVICT_CUDA_KERNELS_REQUANTIZE_H_
#define KVEVICT_CUDA_KERNELS_REQUANTIZE_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kRequantizeThreads = 256;
// The rows of a block. A warp stores one row after the other.
constexpr uint32_t kRequantizeRows = 2 * kRequantizeThreads / 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REQUANTIZE_H_
