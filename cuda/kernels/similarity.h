// Launch shapes of similarity.cu.
#ifndef KVEVICT_CUDA_KERNELS_SIMILARITY_H_
#define KVEVICT_CUDA_KERNELS_SIMILARITY_H_

#include "cosines.h"
#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kSimilarityThreads = kCosineThreads;

// Tokens whose directions a block adds up. A constant, since sums depend on it.
constexpr uint32_t kSimilarityChunk = kSimilarityThreads;

// The words of a list with n_blocks: how many blocks have room after the taken
// ones, how many were not taken, the masses of all, whether each was taken, and
// which were not.
constexpr uint64_t SimilarityWords(uint32_t n_blocks) {
  return 2 + 3 * uint64_t{n_blocks};
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_SIMILARITY_H_
