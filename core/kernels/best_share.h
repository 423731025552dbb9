// Scores of a list by the share that the best of them have.
#ifndef KVEVICT_CORE_KERNELS_BEST_SHARE_H_
#define KVEVICT_CORE_KERNELS_BEST_SHARE_H_

#include <cstdint>

#include "core/simd.h"

namespace kvevict {

// Writes scores[n] times what their n_best best have of the sum of all, in f32; those
// whose key is forced or of NaN are not among them. Where that is not a finite number
// above 0, it writes the scores. The same bits on every target: sums of every 256th,
// then of halves. `out` may be the scores, or where the keys are.
void ScaleByBestShare(SimdTarget simd, const uint32_t* keys, uint32_t n,
                      uint32_t n_best, const float* scores, float* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_BEST_SHARE_H_
