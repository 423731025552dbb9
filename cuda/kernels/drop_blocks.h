// Launch shape of drop_blocks.cu.
#ifndef KVEVICT_CUDA_KERNELS_DROP_BLOCKS_H_
#define KVEVICT_CUDA_KERNELS_DROP_BLOCKS_H_

#include "params.h"

namespace kvevict::cuda {

// Also the number of entries that are processed at a time.
constexpr uint32_t kDropThreads = 512;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DROP_BLOCKS_H_
