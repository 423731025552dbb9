// Launch shapes of redundancy.cu.
#ifndef KVEVICT_CUDA_KERNELS_REDUNDANCY_H_
#define KVEVICT_CUDA_KERNELS_REDUNDANCY_H_

#include "cosines.h"
#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kRedundancyThreads = kCosineThreads;

// Tokens of a block, in all kernels but redundancy_search and redundancy_mix. A
// constant, since sums depend on it.
constexpr uint32_t kRedundancyChunk = kRedundancyThreads;
constexpr uint32_t RedundancyChunks(uint32_t n_tokens) {
  return n_tokens / kRedundancyChunk + (n_tokens % kRedundancyChunk != 0);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REDUNDANCY_H_
