// Launch shape of key_norm.cu.
#ifndef KVEVICT_CUDA_KERNELS_KEY_NORM_H_
#define KVEVICT_CUDA_KERNELS_KEY_NORM_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kNormThreads = 256;
// Of a thread: so many rows' loads are on their way together.
constexpr uint32_t kNormRows = 4;

// Threads of a warp that share a row: a power of two, enough to load it at once.
constexpr uint32_t KeyNormLanes(uint32_t loads_per_row) {
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < loads_per_row) lanes *= 2;
  return lanes;
}

// Rows of a block.
constexpr uint32_t KeyNormBlockRows(uint32_t lanes) {
  return kNormThreads / lanes * kNormRows;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_NORM_H_
