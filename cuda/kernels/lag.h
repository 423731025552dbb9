// Launch shapes of lag.cu.
#ifndef KVEVICT_CUDA_KERNELS_LAG_H_
#define KVEVICT_CUDA_KERNELS_LAG_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kLagThreads = 256;
constexpr uint32_t kLagRankThreads = 128;
// Channels whose sums are added up before those of the next ones, as in
// core/kernels/lag.cc.
constexpr uint32_t kLagPieceDims = 128;

// The number of whole partitions after the sinks.
constexpr uint32_t LagPartitions(uint32_t n_tokens, uint32_t n_sink,
                                 uint32_t partition) {
  return n_tokens < n_sink ? 0 : (n_tokens - n_sink) / partition;
}

// Rows of floats that lag_spreads needs per layer and KV head, n_tokens each.
constexpr uint32_t LagScratchRows(uint32_t k_head_dim, uint32_t v_head_dim) {
  return k_head_dim <= kLagPieceDims && v_head_dim <= kLagPieceDims ? 1 : 3;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_LAG_H_
