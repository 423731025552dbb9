// Loads floating-point numbers as f32. A new dtype of this kind is one more
// decoder.
#if defined(KVEVICT_CORE_DTYPES_PLAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_PLAIN_INL_H_
#undef KVEVICT_CORE_DTYPES_PLAIN_INL_H_
#else
#define KVEVICT_CORE_DTYPES_PLAIN_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows are written in whole groups of this many floats. No more lanes are used,
// so that every vector length divides a group.
inline constexpr size_t kRowPad = 16;
using RowTag = hn::CappedTag<float, kRowPad>;

constexpr size_t PaddedRow(size_t n) {
  return (n + kRowPad - 1) / kRowPad * kRowPad;
}

// Adds kRowPad sums: j and j + kRowPad / 2 are added, then the same with the
// remaining half, and so on.
HWY_INLINE float AddUp(float (&sums)[kRowPad]) {
  for (size_t half = kRowPad / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

#if HWY_TARGET != HWY_SCALAR
// The same for four rows, with few shuffles.
using FourTag = hn::FixedTag<float, 4>;
HWY_INLINE hn::VFromD<FourTag> AddUpFour(const float (&sums)[4][kRowPad]) {
  const FourTag d;
  const auto quads = [&](size_t r) HWY_ATTR {
    const float* const s = sums[r];
    return hn::Add(hn::Add(hn::Load(d, s), hn::Load(d, s + 8)),
                   hn::Add(hn::Load(d, s + 4), hn::Load(d, s + 12)));
  };
  const auto a = quads(0), b = quads(1), c = quads(2), e = quads(3);
  const auto ab =
      hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce =
      hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  return hn::Add(hn::ConcatLowerLower(d, ce, ab),
                 hn::ConcatUpperUpper(d, ce, ab));
}
#endif

// packed[0, n) = elements [first, first + n) of a row, at any stride.
template <class Bits>
HWY_INLINE void CopyElements(const RowSource& rows, const uint8_t* row,
                             size_t first, size_t n,
                             Bits* HWY_RESTRICT packed) {
  if (rows.group_elems == 0) {
    const uint8_t* const from =
        row + static_cast<int64_t>(first) * rows.element_stride;
    for (size_t j = 0; j < n; ++j) {
      std::memcpy(&packed[j],
                  from + static_cast<int64_t>(j) * rows.element_stride,
                  sizeof(Bits));
    }
    return;
  }
  constexpr size_t kUsual = 16 / sizeof(Bits);  // elements of a usual group
  for (size_t j = 0; j < n;) {
    const size_t left = rows.group_elems - (first + j) % rows.group_elems;
    const uint8_t* const from = row + rows.Element(first + j);
    const size_t count = HWY_MIN(left, n - j);
    if (count == kUsual) {
      std::memcpy(packed + j, from, kUsual * sizeof(Bits));
    } else {
      std::memcpy(packed + j, from, count * sizeof(Bits));
    }
    j += count;
  }
}

// Loads from an address of any alignment.
template <class D>
HWY_INLINE hn::VFromD<D> LoadBytes(D d, const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> lane;
  std::memcpy(&lane, from, sizeof(lane));
  return hn::Set(d, lane);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), from));
#endif
}

// A decoder, named as its dtype in core/dtypes.inc, converts Lanes(df) packed
// elements to f32. All conversions are exact, and NaN stays NaN.
struct DecodeF32 {
  using Bits = uint32_t;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* from) {
    return LoadBytes(df, from);
  }
};

struct DecodeF16 {
  using Bits = uint16_t;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* from) {
    return Widen(df, LoadBytes(hn::Rebind<uint16_t, DF>(), from));
  }
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Widen(
      DF df, hn::VFromD<hn::Rebind<uint16_t, DF>> half) {
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
    const hn::Rebind<hwy::float16_t, DF> df16;
    return hn::PromoteTo(df, hn::BitCast(df16, half));
#else
    // Highway's emulation handles neither infinity nor NaN. No subnormal f32
    // occurs in the arithmetic here, so flushing those to zero changes nothing.
    const hn::RebindToUnsigned<DF> du32;
    const auto bits = hn::PromoteTo(du32, half);
    const auto size = hn::And(bits, hn::Set(du32, 0x7FFFu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, size));
    const auto rebias = hn::Set(du32, (127u - 15u) << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(size), rebias);
    // Infinity and NaN have the largest exponent in both formats.
    const auto special = hn::IfThenElse(hn::Gt(size, hn::Set(du32, 0x7BFFu)),
                                        hn::Add(normal, rebias), normal);
    // Subnormal: 2^-14 (1 + fraction) - 2^-14.
    const auto one = hn::Set(du32, 1u << 23);
    const auto least = hn::BitCast(df, hn::Add(rebias, one));
    const auto subnormal = hn::BitCast(
        du32, hn::Sub(hn::BitCast(df, hn::Add(normal, one)), least));
    const auto result = hn::IfThenElse(hn::Lt(size, hn::Set(du32, 0x0400u)),
                                       subnormal, special);
    return hn::BitCast(df, hn::Or(result, sign));
#endif
  }
};

struct DecodeBF16 {
  using Bits = uint16_t;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* from) {
    const hn::Rebind<uint16_t, DF> du16;
    const auto high = LoadBytes(du16, from);
#if HWY_TARGET_IS_NEON
    // One instruction instead of two.
    const hn::Repartition<uint16_t, DF> halves;
    return hn::BitCast(df,
                       hn::InterleaveLower(halves, hn::Zero(halves),
                                           hn::ResizeBitCast(halves, high)));
#else
    const hn::RebindToUnsigned<DF> du32;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du32, high)));
#endif
  }
};

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
