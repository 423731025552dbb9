// Launch shapes of redundancy.cu.
#ifndef KVEVICT_CUDA_KERNELS_REDUNDANCY_H_
#define KVEVICT_CUDA_KERNELS_REDUNDANCY_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kRedundancyThreads = 256;

// Tokens of a block of all but redundancy_search and redundancy_mix. By nothing else,
// since sums depend on it.
constexpr uint32_t kRedundancyChunk = kRedundancyThreads;
constexpr uint32_t RedundancyChunks(uint32_t n_tokens) {
  return n_tokens / kRedundancyChunk + (n_tokens % kRedundancyChunk != 0);
}

// redundancy_search: rows of a block and columns that meet them at a time; elements of
// theirs that are there at a time.
constexpr uint32_t kRedundancyTile = 64;
constexpr uint32_t kRedundancyElements = 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REDUNDANCY_H_
