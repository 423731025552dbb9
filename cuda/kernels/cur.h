// Launch shapes of cur.cu.
#ifndef KVEVICT_CUDA_KERNELS_CUR_H_
#define KVEVICT_CUDA_KERNELS_CUR_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kCurThreads = 256;
constexpr uint32_t kCurScaleThreads = 256;
constexpr uint32_t kCurScaleTokens = 2048;  // of a block

// Blocks of cur_shares: a warp has a window.
constexpr uint32_t CurBlocks(uint32_t n_tokens, uint32_t window) {
  const uint32_t n_windows = n_tokens / window + (n_tokens % window != 0);
  return n_windows / (kCurThreads / 32) + (n_windows % (kCurThreads / 32) != 0);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CUR_H_
