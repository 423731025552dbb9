// Tiles of cosines.cuh.
#ifndef KVEVICT_CUDA_KERNELS_COSINES_H_
#define KVEVICT_CUDA_KERNELS_COSINES_H_

#include "params.h"

namespace kvevict::cuda {

// Threads of a block; rows of a block, and columns that they are multiplied
// with at a time; elements in shared memory at a time.
constexpr uint32_t kCosineThreads = 256;
constexpr uint32_t kCosineTile = 64;
constexpr uint32_t kCosineElements = 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_COSINES_H_
