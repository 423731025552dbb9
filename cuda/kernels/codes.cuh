// Encodes numbers for quantized dtypes; see core/dtypes/quantize-inl.h.
#ifndef KVEVICT_CUDA_KERNELS_CODES_CUH_
#define KVEVICT_CUDA_KERNELS_CODES_CUH_

#include "device.cuh"
#include "dtypes.cuh"
#include "params.h"

namespace kvevict::cuda {

KV_DEVICE bool IsNumber(float v) { return v == v; }
KV_DEVICE float Larger(float a, float b) { return a < b ? b : a; }
KV_DEVICE float Smaller(float a, float b) { return b < a ? b : a; }

constexpr bool IsSmallFloat(int dtype) {
  return FactsOf(dtype).codes.is_float();
}

// The range of a row.
struct Range {
  float min, max;
  uint32_t largest;         // largest absolute value, as bits
  uint32_t largest_finite;  // largest finite one, as bits

  KV_DEVICE Range() : largest(0), largest_finite(0) {
    min = ToFloat<kF32>(kInfinityBits);
    max = -min;
  }
  KV_DEVICE void Widen(float v) {
    const uint32_t size = FromFloat<kF32>(v) & 0x7fffffffu;
    min = Smaller(min, v);
    max = Larger(max, v);
    if (size > largest) largest = size;
    if (size < kInfinityBits && size > largest_finite) largest_finite = size;
  }
  KV_DEVICE void OverWarp() {
    for (uint32_t mask = 16; mask > 0; mask /= 2) {
      min = Smaller(min, ShuffleXor(min, mask));
      max = Larger(max, ShuffleXor(max, mask));
      const uint32_t other = ShuffleXor(largest, mask);
      const uint32_t other_finite = ShuffleXor(largest_finite, mask);
      if (other > largest) largest = other;
      if (other_finite > largest_finite) largest_finite = other_finite;
    }
  }
  KV_DEVICE bool IsFinite() const { return largest < kInfinityBits; }
  KV_DEVICE float size() const { return Larger(-min, max) + 0.0f; }
};

// ---- Scales and minima ----

// The bits of a floating-point number; NaN stays NaN.
template <int kDType>
KV_DEVICE uint32_t PlainBits(float v) {
  const uint32_t bits = FromFloat<kF32>(v);
  if constexpr (kDType == kF16) {
    if (!IsNumber(v)) return (bits >> 16 & 0x8000u) | 0x7e00u;
  } else if constexpr (kDType == kBF16) {
    if (!IsNumber(v)) return bits >> 16 | 0x40u;
  }
  return FromFloat<kDType>(v) & (kDType == kF32 ? ~0u : 0xffffu);
}

template <int kDType>
KV_DEVICE float RoundedUpTo(float v) {
  if (!IsNumber(v)) return v;
  const uint32_t bits = PlainBits<kDType>(v);
  const float nearest = ToFloat<kDType>(bits);
  if (nearest >= v) return nearest;
  return ToFloat<kDType>(nearest < 0.0f ? bits - 1 : bits + 1);
}

// The smallest number of a dtype that is not below v.
KV_DEVICE float RoundedUp(float v, uint32_t dtype) {
  if (dtype == kF16) return RoundedUpTo<kF16>(v);
  if (dtype == kBF16) return RoundedUpTo<kBF16>(v);
  return v;
}

KV_DEVICE void StoreNumber(uint32_t dtype, uint64_t address, float v) {
  if (!IsNumber(v)) v = ToFloat<kF32>(kNaNBits);
  if (dtype == kF16) {
    StoreGlobal(address, static_cast<uint16_t>(PlainBits<kF16>(v)));
  } else if (dtype == kBF16) {
    StoreGlobal(address, static_cast<uint16_t>(PlainBits<kBF16>(v)));
  } else {
    StoreGlobal(address, v);
  }
}

KV_DEVICE float StepOf(float range, float n_steps) {
  return range > 0.0f ? Larger(range / n_steps, 0x1p-126f) : 0.0f;
}

// How a row is encoded.
struct Coder {
  float scale, minimum;
  float inverse;         // of the scale, if all elements are within the range
  bool is_zero = false;  // all codes are 0

  KV_DEVICE void Reach() {
    is_zero = !(scale > 0.0f);
    if (!is_zero) inverse = 1.0f / scale;
  }
};

constexpr float LowestCode(int dtype) {
  return static_cast<float>(FactsOf(dtype).codes.lowest);
}
constexpr float HighestCode(int dtype) {
  return static_cast<float>(FactsOf(dtype).codes.highest);
}

// The scale and minimum of a row of codes.
template <int kDType>
KV_DEVICE Coder NumbersOf(const Range& range, uint32_t scale_dtype,
                          uint32_t minimum_dtype, bool has_minimum) {
  constexpr float kLowest = LowestCode(kDType);
  constexpr float kHighest = HighestCode(kDType);
  float scale, minimum = 0.0f;
  if (!has_minimum) {
    scale = StepOf(range.size(), kHighest);
  } else if (kLowest == 0.0f) {
    minimum = -RoundedUp(-range.min, minimum_dtype);
    scale = StepOf(range.max - minimum, kHighest);
  } else {
    const float step = RoundedUp(
        StepOf(range.max - range.min, kHighest - kLowest), scale_dtype);
    minimum = RoundedUp(range.min - Multiply(kLowest, step), minimum_dtype);
    scale = Larger(StepOf(minimum - range.min, -kLowest),
                   StepOf(range.max - minimum, kHighest));
  }
  scale = RoundedUp(scale, scale_dtype);
  minimum += 0.0f;
  scale += Multiply(scale + minimum, 0.0f);
  if (!range.IsFinite()) scale = ToFloat<kF32>(kNaNBits);
  return {scale, minimum, 0.0f};
}

// The scale of a row of floats.
template <int kDType>
KV_DEVICE float ScaleOf(const Range& range, uint32_t dtype) {
  const float size = ToFloat<kF32>(range.largest_finite);
  if (size == 0.0f) return 1.0f;
  constexpr uint32_t kLargest = FactsOf(kDType).codes.largest_bits();
  const float scale = RoundedUp(StepOf(size, ToFloat<kF32>(kLargest)), dtype);
  return scale + Multiply(scale, 0.0f);
}

// ---- Codes ----

// The nearest integer, halves to even, for |v| up to 2^22.
KV_DEVICE uint32_t NearestInteger(float v) {
  return FromFloat<kF32>(v + 12582912.0f) - 0x4b400000u;
}

// The code of a number divided by its scale: the nearest, halves to even, at
// most the largest.
template <int kDType>
KV_DEVICE uint32_t SmallFloat(float v) {
  constexpr CodeNumbers kCodes = FactsOf(kDType).codes;
  constexpr uint32_t kShift = 23 - kCodes.fraction;
  constexpr uint32_t kRebias = kCodes.bias_bits();
  // the smallest normal number
  constexpr uint32_t kLeast = kRebias + (1u << 23);
  constexpr uint32_t kAnchor = kLeast + (kShift << 23);
  const uint32_t bits = FromFloat<kF32>(v);
  const uint32_t size = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (size > kInfinityBits) return kCodes.nan;
  if (size == kInfinityBits) return sign | kCodes.infinity;
  uint32_t code;
  if (size >= kLeast) {
    code = (size - kRebias + (1u << (kShift - 1)) - 1 + (size >> kShift & 1)) >>
           kShift;
  } else {
    code =
        FromFloat<kF32>(ToFloat<kF32>(size) + ToFloat<kF32>(kAnchor)) - kAnchor;
  }
  return sign | (code < kCodes.largest ? code : kCodes.largest);
}

// The code for dtypes without blocks, in the low bits.
template <int kDType>
KV_DEVICE uint32_t CodeOf(float v, const Coder& by) {
  if constexpr (IsSmallFloat(kDType)) {
    return SmallFloat<kDType>(v / by.scale);
  } else {
    if (by.is_zero) return 0;
    const float d = v - by.minimum;
    float q;
    if (by.inverse != 0.0f) {
      q = Multiply(d, by.inverse);
      q = Fma(Fma(-q, by.scale, d), by.inverse, q);
    } else {
      q = d / by.scale;
      if (!IsNumber(q)) q = 0.0f;
      constexpr float kLowest = LowestCode(kDType);
      constexpr float kHighest = HighestCode(kDType);
      q = Smaller(Larger(q, kLowest), kHighest);
    }
    return NearestInteger(q);
  }
}

// The scale of a ggml block: d as f16, or NaN if it does not fit.
struct BlockScale {
  uint32_t bits;
  float inverse;  // of d; 0: all codes are the code of 0

  KV_DEVICE BlockScale(float d, bool is_finite) {
    bits = PlainBits<kF16>(d);
    if (!is_finite || (bits & 0x7c00u) == 0x7c00u) bits = 0x7e00u;
    inverse = 1.0f / d;
    if (bits == 0x7e00u || d == 0.0f ||
        (FromFloat<kF32>(inverse) & 0x7fffffffu) == kInfinityBits) {
      inverse = 0.0f;
    }
  }
};

template <int kDType>
KV_DEVICE uint32_t BlockCode(float v, float inverse) {
  if constexpr (kDType == kQ8_0) {
    if (inverse == 0.0f) return 0;
    const float q = Multiply(v, inverse);
    const float even = (q + 12582912.0f) - 12582912.0f;
    const float rest = q - even;
    if (rest == 0.5f || rest == -0.5f) {
      return NearestInteger(q + (q < 0.0f ? -0.5f : 0.5f));
    }
    return NearestInteger(even);
  } else {
    if (inverse == 0.0f) return 8;
    return static_cast<uint32_t>(Smaller(Fma(v, inverse, 8.5f), 15.0f));
  }
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CODES_CUH_
