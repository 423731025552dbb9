// Shares that one KV head's keys and values have of their neighbours' squares.
#ifndef KVEVICT_CORE_KERNELS_CUR_H_
#define KVEVICT_CORE_KERNELS_CUR_H_

#include <cstdint>

namespace kvevict {

// Slots from 0 on are cut into windows, of which the last may be short. A share of a
// token is its squared norm / the sum of those of its window, and its score the
// product of both shares / the sum of all tokens' products. The first n_sink score 1.
//
// - A token whose squared norms are not both finite scores NaN and is left out of
//   all sums.
// - Where a sum is under 2^-126, as that of zeros is, what is divided by it becomes
//   0.
struct CurShares {
  uint32_t n_tokens = 0;
  uint32_t window = 0;
  uint32_t n_sink = 0;                 // may be more than there are
  const float* value_norms = nullptr;  // [n_tokens], of any sign
  float* scores = nullptr;  // [n_tokens]: in norms of keys, out the scores
};

// Sums over a window are f32 in the order of the tokens, that of all tokens double.
void ComputeCurShares(const CurShares& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_CUR_H_
