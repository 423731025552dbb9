// Scores of blocks of neighbouring slots.
#ifndef KVEVICT_CORE_KERNELS_BLOCK_MEANS_H_
#define KVEVICT_CORE_KERNELS_BLOCK_MEANS_H_

#include <cstddef>
#include <cstdint>

#include "core/simd.h"

namespace kvevict {

// Makes every score that of its block of `block` slots, the last one being what is
// left of n: the mean, summed in f32 from the first slot on, the same bits on every
// target. `out` may be `scores`.
void AverageBlocks(SimdTarget simd, const float* scores, size_t n,
                   uint32_t block, float* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_BLOCK_MEANS_H_
