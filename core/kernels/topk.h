// Selection by radix: the k largest of n keys, in ascending order of index.
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

// The bits of a key, digit by digit, highest first: 11 + 11 + 10.
struct KeyDigit {
  uint32_t shift;
  uint32_t n_bits;
};
inline constexpr KeyDigit kKeyDigits[] = {{21, 11}, {10, 11}, {0, 10}};
inline constexpr size_t kMaxKeyBins = 2048;

// Counts the keys whose higher digits are `prefix`, per value of the digit,
// into bins[0, 2^n_bits).
void CountKeyDigit(SimdTarget simd, const uint32_t* keys, size_t n,
                   const KeyDigit& digit, uint32_t prefix, uint32_t* bins);

// How many keys are larger than `key`.
uint32_t CountGreater(SimdTarget simd, const uint32_t* keys, size_t n,
                      uint32_t key);

// The k-th largest key.
struct KeyCut {
  uint32_t key;
  size_t n_equal;   // keys equal to it
  size_t n_needed;  // how many of these are among the k largest
};

// 0 < k <= n < 2^31.
KeyCut FindKeyCut(SimdTarget simd, const uint32_t* keys, size_t n, size_t k);

enum class Tie { kLower, kHigher };

// Writes the indices of the k largest keys to out[0, k), ascending. It takes
// the lower or the higher indices of keys equal to the k-th largest. k <= n <
// 2^31. Makes three passes over the keys, whatever their values.
void SelectTopK(SimdTarget simd, const uint32_t* keys, size_t n, size_t k,
                Tie tie, int32_t* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_TOPK_H_
