// Scales scores of a list by the share of its best.
#ifndef KVEVICT_CORE_KERNELS_BEST_SHARE_H_
#define KVEVICT_CORE_KERNELS_BEST_SHARE_H_

#include <cstdint>

#include "core/simd.h"

namespace kvevict {

// Writes scores[n] times the share that the n_best best have in the sum of all,
// in f32. Scores with a forced key or NaN's key are not in the sums. If the
// share is not a finite number above 0, the scores are written unchanged. All
// targets give the same bits: sums of every 256th score, then of halves. `out`
// may be the scores or the keys.
void ScaleByBestShare(SimdTarget simd, const uint32_t* keys, uint32_t n,
                      uint32_t n_best, const float* scores, float* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_BEST_SHARE_H_
