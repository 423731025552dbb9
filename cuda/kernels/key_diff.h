// Launch shapes of key_diff.cu.
#ifndef KVEVICT_CUDA_KERNELS_KEY_DIFF_H_
#define KVEVICT_CUDA_KERNELS_KEY_DIFF_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kDiffThreads = 256;
// The rows that a thread loads at once.
constexpr uint32_t kDiffRows = 4;

// key_sums: tokens of a block. A constant, since sums depend on it.
constexpr uint32_t kDiffChunk = 256;
constexpr uint32_t KeyDiffChunks(uint32_t n_tokens) {
  return n_tokens / kDiffChunk + (n_tokens % kDiffChunk != 0 ? 1 : 0);
}

// add_key_sums: elements of a block, and its threads that share one.
constexpr uint32_t kDiffColumns = 32;
constexpr uint32_t kDiffSlices = kDiffThreads / kDiffColumns;

// key_diffs: rows of a block.
constexpr uint32_t KeyDiffBlockRows(uint32_t lanes) {
  return kDiffThreads / lanes * kDiffRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_DIFF_H_
