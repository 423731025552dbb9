// Rows of f32 as dtypes that can be scored store them: rounded to the nearest, halves
// to even; NaN stays NaN. A new dtype is an encoder more below.
#if defined(KVEVICT_CORE_DTYPES_STORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_STORE_INL_H_
#undef KVEVICT_CORE_DTYPES_STORE_INL_H_
#else
#define KVEVICT_CORE_DTYPES_STORE_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// An encoder, by the name that core/dtypes.inc has for its dtype.
struct EncodeF32 {
  static HWY_INLINE uint32_t Bits(float v) {
    return std::bit_cast<uint32_t>(v);
  }
};

struct EncodeF16 {
  static HWY_INLINE uint16_t Bits(float v) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    const uint32_t size = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t half;
    if (size >= 0x47800000u) {  // 2^16 and more, NaN
      half = size > 0x7F800000u ? 0x7E00u : 0x7C00u;
    } else if (size < 0x38800000u) {  // subnormal: a ulp is that of 0.5
      half = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) -
             std::bit_cast<uint32_t>(0.5f);
    } else {
      half = (size - (112u << 23) + 0x0FFFu + (size >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
  }
};

struct EncodeBF16 {
  static HWY_INLINE uint16_t Bits(float v) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
      return static_cast<uint16_t>(bits >> 16 | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
  }
};

template <bool kCanScore, class Encode, class Use>
HWY_INLINE void UseEncoder(const Use& use) {
  if constexpr (kCanScore) use(Encode());
}

// The row's elements = from[0, n). Strides may have any sign and addresses any
// alignment; nothing else is written.
HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, size_t n, DType dtype,
                         int64_t element_stride, uint8_t* to) {
  const auto store = [&](auto encoder) HWY_ATTR {
    for (size_t i = 0; i < n; ++i) {
      const auto bits = decltype(encoder)::Bits(from[i]);
      std::memcpy(to + static_cast<int64_t>(i) * element_stride, &bits,
                  sizeof(bits));
    }
  };
  switch (dtype) {
#define KVEVICT_DTYPE(Name, text, id, bytes, move, score, rotate) \
  case DType::k##Name:                                            \
    return UseEncoder<score != 0, struct Encode##Name>(store);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
