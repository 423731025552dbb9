// Launch shapes of positions.cu.
#ifndef KVEVICT_CUDA_KERNELS_POSITIONS_H_
#define KVEVICT_CUDA_KERNELS_POSITIONS_H_

#include "params.h"

namespace kvevict::cuda {

// map_positions: grid (blocks for the longest n_keep, n_lists, n_layers).
// set_lengths, advance_counts, set_counts: grid (blocks for n_lists).
constexpr uint32_t kPositionsThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_POSITIONS_H_
