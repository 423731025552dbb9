// Raises scores to their mean.
#ifndef KVEVICT_CORE_KERNELS_RAISE_TO_MEAN_H_
#define KVEVICT_CORE_KERNELS_RAISE_TO_MEAN_H_

#include <cstddef>

#include "core/simd.h"

namespace kvevict {

// The sum of n scores: 256 sums of every 256th, added as a tree. The same bits
// on every target and device.
float SumScores(SimdTarget simd, const float* scores, size_t n);

// Replaces scores below the mean of all n by the mean, in place. A mean that is
// not finite changes nothing. NaN stays.
void RaiseToMean(SimdTarget simd, float* scores, size_t n);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_RAISE_TO_MEAN_H_
