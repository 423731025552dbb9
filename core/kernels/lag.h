// Scores one KV head's keys and values by how far they stand out from those
// after them.
#ifndef KVEVICT_CORE_KERNELS_LAG_H_
#define KVEVICT_CORE_KERNELS_LAG_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

// Tokens after the sinks are cut into partitions, and each is measured by the
// next one. Per channel, x' = (x - min) / (max - min) with the least and
// greatest element of the next partition. A token's spread is the standard
// deviation of x' over the channels, sum of squares / (head_dim - 1); 0 if
// head_dim is 1. The spreads of a partition go through a softmax, for keys and
// values separately. A token's score is its rank by their mean: the number of
// lower tokens / partition. If means are equal, the earlier token is higher.
//
// - NaN in the next partition is ignored. A channel whose range there is 0, not
// finite, or below 2^-128 is ignored: x' counts as 0 in all tokens.
// - A token whose spread is not finite (it contains NaN or infinity, or is 1e18
// ranges away) scores NaN and is left out of the softmax. It counts as lower
// than any.
// - Sinks, the last whole partition and the tokens after it score 1. If there
// are not two whole partitions, token t scores (t - n_sink) / (n_tokens -
// n_sink).
struct LagScores {
  RowSource keys;    // n_tokens rows
  RowSource values;  // likewise
  uint32_t k_head_dim = 0;
  uint32_t v_head_dim = 0;
  uint32_t n_tokens = 0;
  uint32_t n_sink = 0;         // may exceed n_tokens
  uint32_t partition = 0;      // tokens, 2 or more
  bool ranks = true;           // false: scores are the means, not the ranks
  uint8_t* scratch = nullptr;  // LagScratchBytes(), aligned to 8
  float* out = nullptr;        // [n_tokens]
};

uint64_t LagScratchBytes(uint32_t k_head_dim, uint32_t v_head_dim,
                         uint32_t partition);

// Sums are f32 in an order that depends only on head_dim and the partition. So
// targets with a fused multiply-add give the same bits, whatever the layout,
// and cuda/kernels/lag.cu does too. Other targets round differently, which may
// swap tokens of adjacent ranks. Reads every row twice, a partition apart.
void ComputeLagScores(SimdTarget simd, const LagScores& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_LAG_H_
