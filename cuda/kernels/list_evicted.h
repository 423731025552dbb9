// Launch shape of list_evicted.cu.
#ifndef KVEVICT_CUDA_KERNELS_LIST_EVICTED_H_
#define KVEVICT_CUDA_KERNELS_LIST_EVICTED_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kEvictedThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_LIST_EVICTED_H_
