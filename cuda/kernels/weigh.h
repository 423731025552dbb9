// Launch shape of weigh.cu.
#ifndef KVEVICT_CUDA_KERNELS_WEIGH_H_
#define KVEVICT_CUDA_KERNELS_WEIGH_H_

#include "params.h"

namespace kvevict::cuda {

// Grid (blocks for the longest layer, n_kv_heads, n_layers).
constexpr uint32_t kWeighThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WEIGH_H_
