// Launch shape of rescue.cu.
#ifndef KVEVICT_CUDA_KERNELS_RESCUE_H_
#define KVEVICT_CUDA_KERNELS_RESCUE_H_

#include "params.h"

namespace kvevict::cuda {

// Grid (n_lists, n_layers).
constexpr uint32_t kRescueThreads = 256;
constexpr uint32_t kMostRescueBlock = 65536;  // slots of a block

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_RESCUE_H_
