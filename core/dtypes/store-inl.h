// Stores rows of f32 as floating-point dtypes, rounded to the nearest, halves
// to even; NaN stays NaN. A new dtype is one more encoder below.
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
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Stores to an address of any alignment.
template <class D>
HWY_INLINE void StoreBytes(D, hn::VFromD<D> v, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  const hn::TFromD<D> lane = hn::GetLane(v);
  std::memcpy(to, &lane, sizeof(lane));
#else
  const hn::Repartition<uint8_t, D> bytes;
  hn::StoreU(hn::BitCast(bytes, v), bytes, to);
#endif
}

// An encoder of numbers and of vectors, named as its dtype in core/dtypes.inc.
struct EncodeF32 {
  static HWY_INLINE uint32_t Bits(float v) {
    return std::bit_cast<uint32_t>(v);
  }
  template <class D>
  static HWY_INLINE void Store([[maybe_unused]] D d, hn::VFromD<D> v,
                               uint8_t* to) {
    StoreBytes(d, v, to);
  }
};

// Stores the lower halves of v.
template <class DU>
HWY_INLINE void StoreLow([[maybe_unused]] DU du, hn::VFromD<DU> v,
                         uint8_t* to) {
  const hn::Rebind<uint16_t, DU> low;
  StoreBytes(low, hn::TruncateTo(low, v), to);
}

struct EncodeF16 {
  static HWY_INLINE uint16_t Bits(float v) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    const uint32_t size = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t half;
    if (size >= 0x47800000u) {  // 2^16 and more, or NaN
      half = size > 0x7F800000u ? 0x7E00u : 0x7C00u;
    } else if (size < 0x38800000u) {  // subnormal: its ulp is that of 0.5
      half = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) -
             std::bit_cast<uint32_t>(0.5f);
    } else {
      half = (size - (112u << 23) + 0x0FFFu + (size >> 13 & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
  }
  template <class D>
  static HWY_INLINE void Store([[maybe_unused]] D d, hn::VFromD<D> v,
                               uint8_t* to) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto size = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
    const auto is_above = [&](uint32_t bound) HWY_ATTR {
      return hn::RebindMask(du,
                            hn::Gt(hn::BitCast(di, size),
                                   hn::Set(di, static_cast<int32_t>(bound))));
    };
    const auto odd = hn::And(hn::ShiftRight<13>(size), hn::Set(du, 1u));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(hn::Sub(size, hn::Set(du, (112u << 23) - 0x0FFFu)), odd));
    const auto subnormal = hn::Sub(
        hn::BitCast(du, hn::Add(hn::BitCast(d, size), hn::Set(d, 0.5f))),
        hn::Set(du, std::bit_cast<uint32_t>(0.5f)));
    auto half = hn::IfThenElse(is_above(0x387FFFFFu), normal, subnormal);
    half = hn::IfThenElse(is_above(0x477FFFFFu), hn::Set(du, 0x7C00u), half);
    half = hn::IfThenElse(is_above(0x7F800000u), hn::Set(du, 0x7E00u), half);
    StoreLow(du, hn::Or(sign, half), to);
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
  template <class D>
  static HWY_INLINE void Store([[maybe_unused]] D d, hn::VFromD<D> v,
                               uint8_t* to) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(du, 1u));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
    const auto nan = hn::Or(high, hn::Set(du, 0x40u));
    StoreLow(du, hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded),
             to);
  }
};

template <bool kIsPlain, class Encode, class Use>
HWY_INLINE void UseEncoder(const Use& use) {
  if constexpr (kIsPlain) use(Encode());
}

// Writes from[0, n) to elements [first, first + n) of row r. Strides may have
// any sign and addresses any alignment. Nothing else is written.
HWY_INLINE void StoreRow(const float* HWY_RESTRICT from, const RowSource& rows,
                         uint32_t r, size_t first, size_t n) {
  uint8_t* const row = const_cast<uint8_t*>(rows.Row(r));
  const auto store = [&](auto encoder) HWY_ATTR {
    using Encode = decltype(encoder);
    size_t i = 0;
    constexpr size_t kBytes = sizeof(Encode::Bits(0.0f));
    if (rows.IsPacked(kBytes)) {
      const hn::ScalableTag<float> d;
      for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
        Encode::Store(d, hn::LoadU(d, from + i), row + (first + i) * kBytes);
      }
    }
    for (; i < n; ++i) {
      const auto bits = Encode::Bits(from[i]);
      std::memcpy(row + rows.Element(first + i), &bits, kBytes);
    }
  };
  switch (rows.dtype) {
#define KVEVICT_DTYPE(Name, text, id, bytes, ...) \
  case DType::k##Name:                            \
    return UseEncoder<(bytes > 1 && IsBuilt(text)), struct Encode##Name>(store);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
