// Scores of blocks of adjacent slots.
#ifndef KVEVICT_CORE_KERNELS_BLOCK_MEANS_H_
#define KVEVICT_CORE_KERNELS_BLOCK_MEANS_H_

#include <cstddef>
#include <cstdint>

#include "core/simd.h"

namespace kvevict {

// Replaces every score by the mean of its block of `block` slots; the last
// block has the rest of n. The mean is summed in f32 from the first slot on,
// with the same bits on every target. `out` may be `scores`.
void AverageBlocks(SimdTarget simd, const float* scores, size_t n,
                   uint32_t block, float* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_BLOCK_MEANS_H_
