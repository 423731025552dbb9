// Scores by the shares of one KV head's keys and values in the squared norms of
// their windows.
#ifndef KVEVICT_CORE_KERNELS_CUR_H_
#define KVEVICT_CORE_KERNELS_CUR_H_

#include <cstdint>

namespace kvevict {

// Slots from 0 on are cut into windows; the last may be short. A share of a
// token is its squared norm / the sum of those of its window. Its score is the
// product of both shares / the sum of all tokens' products. The first n_sink
// tokens score 1.
//
// - A token whose squared norms are not both finite scores NaN and is in no
// sum.
// - If a sum is below 2^-126, like one of zeros, quotients by it are 0.
struct CurShares {
  uint32_t n_tokens = 0;
  uint32_t window = 0;
  uint32_t n_sink = 0;                 // may exceed n_tokens
  const float* value_norms = nullptr;  // [n_tokens], of any sign
  float* scores = nullptr;  // [n_tokens]: in: norms of keys; out: scores
};

// Sums over a window are f32 in the order of the tokens. The sum over all
// tokens is double.
void ComputeCurShares(const CurShares& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_CUR_H_
