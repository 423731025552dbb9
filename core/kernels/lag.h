// How far one KV head's keys and values stand out against those after them.
#ifndef KVEVICT_CORE_KERNELS_LAG_H_
#define KVEVICT_CORE_KERNELS_LAG_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// Tokens behind the sinks are cut into partitions; the next partition is what one
// is measured by. Per channel, x' = (x - min) / (max - min) with the next one's
// least and greatest element. A token's spread is the standard deviation of x'
// over the channels, sum of squares / (head_dim - 1); 0 where head_dim is 1. The
// spreads of a partition go through a softmax, for keys and values apart, and a
// token's score is its place by their mean: (as many as are lower) / partition.
// Of equal ones the earlier token is the higher.
//
// - NaN in the next partition is overlooked. A channel whose range there is 0, not
//   finite, or under 2^-128 says nothing: x' counts as 0 in all tokens.
// - A token whose spread is not finite (it holds NaN or infinity, or lies 1e18
//   ranges away) scores NaN and is left out of the softmax; it counts as lower
//   than any.
// - Sinks, the last whole partition and what is behind it score 1. Where there are
//   no two whole partitions, token t scores (t - n_sink) / (n_tokens - n_sink).
struct LagScores {
  RowSource keys;    // n_tokens rows
  RowSource values;  // likewise
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;
  uint32_t n_tokens = 0;
  uint32_t n_sink = 0;         // may be more than there are
  uint32_t partition = 0;      // tokens, 2 or more
  bool ranks = true;           // else scores are the means that places go by
  uint8_t* scratch = nullptr;  // LagScratchBytes(), aligned to 8
  float* out = nullptr;        // [n_tokens]
};

uint64_t LagScratchBytes(uint32_t k_head_dim, uint32_t v_head_dim,
                         uint32_t partition);

// Sums are f32 in an order that depends on head_dim and the partition alone:
// whatever the layout, targets that have a fused multiply-add make the same bits,
// and cuda/kernels/lag.cu makes them too. Others round otherwise, which may swap
// neighbours. Reads every row twice, a partition's distance apart.
void ComputeLagScores(SimdTarget simd, const LagScores& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_LAG_H_
