// Launch shape of check_keep.cu.
#ifndef KVEVICT_CUDA_KERNELS_CHECK_KEEP_H_
#define KVEVICT_CUDA_KERNELS_CHECK_KEEP_H_

#include "params.h"

namespace kvevict::cuda {

// Grid (n_keep / 256, n_lists).
constexpr uint32_t kCheckKeepThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CHECK_KEEP_H_
