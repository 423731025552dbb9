// Numbers as the 16-bit elements that tensor cores take: a high part, the
// nearest element, and a low part, the element nearest to what is left.
//
// What is lost of v is at most 2^-17 |v| with bf16. With f16, numbers are scaled
// by a power of two so that the largest is between 2^14 and 2^15. Then at most
// 2^-23 |v| + 2^-39 of the largest is lost.
#ifndef KVEVICT_CUDA_KERNELS_PARTS_CUH_
#define KVEVICT_CUDA_KERNELS_PARTS_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// A part of v. Infinity and NaN are in the high part; the low part is then 0.
template <int kElement>
KV_DEVICE uint32_t PartOf(float v, bool is_low) {
  const uint32_t bits = FromFloat<kF32>(v);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t size = bits & 0x7fffffff;
  if (size >= kInfinityBits) {
    if (is_low) return 0;
    const uint32_t infinity = kElement == kF16 ? 0x7c00 : 0x7f80;
    return sign | infinity | (size > kInfinityBits ? 0x240 : 0);
  }
  uint32_t high = FromFloat<kElement>(v);
  // The largest numbers are cut instead, so that they stay finite.
  if (kElement == kBF16 && (high & 0x7f80) == 0x7f80) high = bits >> 16;
  return is_low ? FromFloat<kElement>(v - ToFloat<kElement>(high)) : high;
}

// The same with fewer instructions: high parts of bf16 are cut, so that at most
// 2^-16 |v| is lost. A NaN must come from arithmetic.
template <int kElement>
KV_DEVICE uint32_t CutPartOf(float v, bool is_low) {
  uint32_t high = FromFloat<kF32>(v) >> 16;
  if constexpr (kElement == kF16) high = v == v ? FromFloat<kF16>(v) : 0x7e00;
  if (!is_low) return high;
  const float rest = v - ToFloat<kElement>(high);
  return rest == rest ? FromFloat<kElement>(rest) : 0;
}

// The inverse of a power of two.
KV_DEVICE float InverseOfPower(float v) {
  return ToFloat<kF32>((254u << 23) - FromFloat<kF32>(v));
}

// The power of two by which f16 parts are multiplied afterwards, from the bits
// of the largest magnitude. It is at least 2^-126, so tiny numbers stay tiny.
KV_DEVICE float ScaleOfLargest(uint32_t size) {
  // Exponents are biased by 127.
  const uint32_t exponent = size >> 23 < 15 ? 15 : size >> 23;
  return ToFloat<kF32>((exponent - 14) << 23);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_PARTS_CUH_
