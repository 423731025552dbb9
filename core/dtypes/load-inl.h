// Rows of dtypes that can be scored, as f32. A new one is a decoder more below.
#if defined(KVEVICT_CORE_DTYPES_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_LOAD_INL_H_
#undef KVEVICT_CORE_DTYPES_LOAD_INL_H_
#else
#define KVEVICT_CORE_DTYPES_LOAD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows are written in whole groups of this many floats; also the most lanes
// used, so that every vector length divides a group.
inline constexpr size_t kRowPad = 16;
using RowTag = hn::CappedTag<float, kRowPad>;

constexpr size_t PaddedRow(size_t n) {
  return (n + kRowPad - 1) / kRowPad * kRowPad;
}

// Of kRowPad sums, j and j + kRowPad / 2 are added, and so on with the half that this
// leaves.
HWY_INLINE float AddUp(float (&sums)[kRowPad]) {
  for (size_t half = kRowPad / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
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

// A decoder, by the name that core/dtypes.inc has for its dtype, turns Lanes(df)
// packed elements into f32. All conversions are exact, and NaN stays NaN.
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
    const hn::Rebind<uint16_t, DF> du16;
    const auto half = LoadBytes(du16, from);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    const hn::Rebind<hwy::float16_t, DF> df16;
    return hn::PromoteTo(df, hn::BitCast(df16, half));
#else
    // Highway's emulation knows no infinity and no NaN. None of the arithmetic here
    // sees a subnormal f32, so that flushing those to zero changes nothing.
    const hn::RebindToUnsigned<DF> du32;
    const auto bits = hn::PromoteTo(du32, half);
    const auto size = hn::And(bits, hn::Set(du32, 0x7FFFu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, size));
    const auto rebias = hn::Set(du32, (127u - 15u) << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(size), rebias);
    // Infinity and NaN: the largest exponent there, the largest exponent here.
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
    const hn::RebindToUnsigned<DF> du32;
    const auto bits = hn::PromoteTo(du32, LoadBytes(du16, from));
    return hn::BitCast(df, hn::ShiftLeft<16>(bits));
  }
};

template <bool kCanScore, class Decode, class Use>
HWY_INLINE void UseDecoder(const Use& use) {
  if constexpr (kCanScore) use(Decode());
}

// Calls use() with the decoder of a dtype that can be scored.
template <class Use>
HWY_INLINE void WithDecoder(DType dtype, const Use& use) {
  switch (dtype) {
#define KVEVICT_DTYPE(Name, text, id, bytes, move, score, rotate) \
  case DType::k##Name:                                            \
    return UseDecoder<score != 0, struct Decode##Name>(use);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  }
}

// Whether Decode can load vectors from where the elements of rows lie.
template <class Decode>
HWY_INLINE bool IsPacked(const RowSource& rows) {
  return rows.IsPacked(sizeof(typename Decode::Bits));
}

// packed[0, n) = elements [first, first + n) of a row, wherever they lie.
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
  constexpr size_t kUsual = 16 / sizeof(Bits);  // of a group
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

// out[0, n) = elements [first, first + n) of row r; out[n, PaddedRow(n)) = 0.
// Strides may have any sign and addresses any alignment.
template <class Decode>
HWY_INLINE void LoadRowOf(const RowSource& rows, uint32_t r, size_t first,
                          size_t n, float* HWY_RESTRICT out) {
  using Bits = typename Decode::Bits;
  const uint8_t* const row = rows.Row(r);
  const RowTag df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  if (IsPacked<Decode>(rows)) {
    const uint8_t* const from = row + first * sizeof(Bits);
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(Decode::Load(df, from + i * sizeof(Bits)), df, out + i);
    }
  }
  // The end of the row, and elements that lie apart: through a packed copy, so
  // that nothing past the row is read.
  for (; i < PaddedRow(n); i += lanes) {
    Bits packed[kRowPad] = {};
    if (i < n) {
      CopyElements(rows, row, first + i, HWY_MIN(lanes, n - i), packed);
    }
    hn::StoreU(Decode::Load(df, reinterpret_cast<const uint8_t*>(packed)), df,
               out + i);
  }
}

// The same of rows whose dtype, one that can be scored, the caller need not know.
HWY_INLINE void LoadRow(const RowSource& rows, uint32_t r, size_t first,
                        size_t n, float* HWY_RESTRICT out) {
  WithDecoder(rows.dtype, [&](auto decoder) HWY_ATTR {
    LoadRowOf<decltype(decoder)>(rows, r, first, n, out);
  });
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
