// Selection by radix: the k largest of n keys, ascending by place.
#ifndef KVEVICT_CORE_KERNELS_TOPK_H_
#define KVEVICT_CORE_KERNELS_TOPK_H_

#include <cstddef>
#include <cstdint>

#include "core/simd.h"

namespace kvevict {

// Order-preserving keys: larger score, larger key; -0 equals +0; NaN is
// kNanKey, the lowest. No score has kForcedKey, which is above +infinity.
inline constexpr uint32_t kNanKey = 0;
inline constexpr uint32_t kForcedKey = UINT32_MAX;

// `keys` may be the same memory as `scores`.
void ScoresToKeys(SimdTarget simd, const float* scores, size_t n,
                  uint32_t* keys);

enum class Tie { kLower, kHigher };

// Writes the places of the k largest keys to out[0, k), ascending; of equal
// keys at the cut the lower or the higher places. k <= n < 2^31. Three passes
// over the keys, whatever their values.
void SelectTopK(SimdTarget simd, const uint32_t* keys, size_t n, size_t k,
                Tie tie, int32_t* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_TOPK_H_
