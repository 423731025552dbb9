// Multiplies scores of tokens by weights.
#ifndef KVEVICT_CORE_KERNELS_WEIGH_H_
#define KVEVICT_CORE_KERNELS_WEIGH_H_

#include <cstddef>

#include "core/simd.h"

namespace kvevict {

// scores[i] = (scores[i] + epsilon) * weights[i], in f32; +infinity stays. NaN
// in, NaN out. The same bits on every target.
void WeighScores(SimdTarget simd, const float* weights, size_t n, float epsilon,
                 float* scores);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_WEIGH_H_
