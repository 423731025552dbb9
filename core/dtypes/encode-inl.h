// Encodes floats as codes of one byte each, and packs codes. An encoder turns a
// vector into integers.
#if defined(KVEVICT_CORE_DTYPES_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_ENCODE_INL_H_
#undef KVEVICT_CORE_DTYPES_ENCODE_INL_H_
#else
#define KVEVICT_CORE_DTYPES_ENCODE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/dtypes/load-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- A vector, a row ----

// The codes of a vector.
template <class Encode>
HWY_INLINE hn::Vec<hn::Rebind<uint8_t, RowTag>> CodesOf(const Encode& encode,
                                                        const float* from) {
  const RowTag df;
  const hn::RebindToUnsigned<RowTag> du;
  return hn::TruncateTo(hn::Rebind<uint8_t, RowTag>(),
                        hn::BitCast(du, encode(df, hn::LoadU(df, from))));
}
template <class Encode>
HWY_INLINE void EncodeVector(const Encode& encode, const float* from,
                             uint8_t* out) {
  hn::StoreU(CodesOf(encode, from), hn::Rebind<uint8_t, RowTag>(), out);
}

// out[0, n) = codes.
template <class Encode>
HWY_INLINE void EncodeBytes(const Encode& encode,
                            const float* HWY_RESTRICT from, size_t n,
                            uint8_t* HWY_RESTRICT out) {
  const size_t lanes = hn::Lanes(RowTag());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) EncodeVector(encode, from + i, out + i);
  if (i == n) return;
  float rest[kRowPad] = {};
  uint8_t codes[kRowPad];
  std::copy_n(from + i, n - i, rest);
  EncodeVector(encode, rest, codes);
  std::copy_n(codes, n - i, out + i);
}

// The same for whole vectors, written past the caches; `out` is aligned to 16
// bytes.
template <class Encode>
HWY_INLINE void StreamBytes(const Encode& encode,
                            const float* HWY_RESTRICT from, size_t n,
                            uint8_t* HWY_RESTRICT out) {
  const hn::Rebind<uint8_t, RowTag> du8;
  const size_t lanes = hn::Lanes(du8);
  // Stores of less than 16 bytes would go through the caches.
  if (lanes != 16) return EncodeBytes(encode, from, n, out);
  for (size_t i = 0; i < n; i += lanes) {
    hn::Stream(CodesOf(encode, from + i), du8, out + i);
  }
}

// ---- Encoders ----

// The nearest integer in lowest .. highest, halves to even; NaN becomes 0.
struct ToInteger {
  float scale, minimum;
  float lowest, highest;
  template <class DF>
  HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> operator()(
      DF df, hn::VFromD<DF> v) const {
    const auto q =
        hn::Div(hn::Sub(v, hn::Set(df, minimum)), hn::Set(df, scale));
    const auto number = hn::IfThenZeroElse(hn::IsNaN(q), q);
    return hn::NearestInt(
        hn::Min(hn::Max(number, hn::Set(df, lowest)), hn::Set(df, highest)));
  }
};

// The same, but the code is only in the lowest byte. All values must be within
// the range, and the step not subnormal. The fused multiply-add gives the same
// quotient as division, and faster.
struct ToReached {
  float scale, minimum, inverse;
  template <class DF>
  HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> operator()(
      DF df, hn::VFromD<DF> v) const {
    const auto d = hn::Sub(v, hn::Set(df, minimum));
    const auto by = hn::Set(df, scale);
#if HWY_NATIVE_FMA
    const auto times = hn::Set(df, inverse);
    const auto product = hn::Mul(d, times);
    const auto q = hn::MulAdd(hn::NegMulAdd(product, by, d), times, product);
#else
    const auto q = hn::Div(d, by);
#endif
    // Adding 1.5 * 2^23, whose ulp is 1, rounds to an integer.
    return hn::BitCast(hn::RebindToSigned<DF>(),
                       hn::Add(q, hn::Set(df, 12582912.0f)));
  }
};

// The nearest float, halves to even. Larger values become the largest number.
template <DType kDType>
struct ToSmallFloat {
  float scale;
  template <class DF>
  HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> operator()(
      DF df, hn::VFromD<DF> v) const {
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    constexpr CodeNumbers kCodes = InfoOf(kDType).codes;
    constexpr uint32_t kShift = 23 - kCodes.fraction;
    constexpr uint32_t kRebias = kCodes.bias_bits();
    // the smallest normal number
    constexpr uint32_t kLeast = kRebias + (1u << 23);
    const auto bits = hn::BitCast(du, hn::Div(v, hn::Set(df, scale)));
    const auto size = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80u));
    const auto is_above = [&](uint32_t bound) HWY_ATTR {
      return hn::RebindMask(du,
                            hn::Gt(hn::BitCast(di, size),
                                   hn::Set(di, static_cast<int32_t>(bound))));
    };
    const auto odd = hn::And(hn::ShiftRight<kShift>(size), hn::Set(du, 1u));
    const auto half = hn::Set(du, (1u << (kShift - 1)) - 1u - kRebias);
    const auto normal =
        hn::ShiftRight<kShift>(hn::Add(hn::Add(size, half), odd));
    // A number whose ulp is that of subnormal numbers.
    constexpr uint32_t kAnchor = kLeast + (kShift << 23);
    const auto anchor = hn::BitCast(df, hn::Set(du, kAnchor));
    const auto subnormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, size), anchor)),
                hn::Set(du, kAnchor));
    auto code = hn::IfThenElse(is_above(kLeast - 1), normal, subnormal);
    code = hn::Min(code, hn::Set(du, kCodes.largest));
    const auto is_infinite = hn::Eq(size, hn::Set(du, 0x7F800000u));
    code = hn::IfThenElse(is_infinite, hn::Set(du, kCodes.infinity), code);
    code = hn::IfThenElse(is_above(0x7F800000u), hn::Set(du, kCodes.nan),
                          hn::Or(code, sign));
    return hn::BitCast(di, code);
  }
};

// Like C's roundf(), halves away from 0, but a value just below a half counts
// as a half.
struct ToQ8 {
  float inverse;
  template <class DF>
  HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> operator()(
      DF df, hn::VFromD<DF> v) const {
    const auto q = hn::Mul(v, hn::Set(df, inverse));
    const auto below_half = hn::Set(df, 0.49999997f);
    return hn::ConvertInRangeTo(hn::RebindToSigned<DF>(),
                                hn::Add(q, hn::CopySign(below_half, q)));
  }
};

struct ToQ4 {
  float inverse;
  template <class DF>
  HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> operator()(
      DF df, hn::VFromD<DF> v) const {
    const auto q = hn::MulAdd(v, hn::Set(df, inverse), hn::Set(df, 8.5f));
    return hn::ConvertInRangeTo(hn::RebindToSigned<DF>(),
                                hn::Min(q, hn::Set(df, 15.0f)));
  }
};

// ---- Two codes in a byte ----

// out[j] = low[j] | high[j] << 4.
HWY_INLINE void PackNibbles(const uint8_t* HWY_RESTRICT low,
                            const uint8_t* HWY_RESTRICT high, size_t n,
                            uint8_t* HWY_RESTRICT out) {
  const hn::CappedTag<uint8_t, 16> d;
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    hn::StoreU(
        hn::Or(hn::LoadU(d, low + j), hn::ShiftLeft<4>(hn::LoadU(d, high + j))),
        d, out + j);
  }
  for (; j < n; ++j) out[j] = static_cast<uint8_t>(low[j] | high[j] << 4);
}

// out[j] = codes[2 j] << 4 | codes[2 j + 1].
HWY_INLINE void PackPairs(const uint8_t* HWY_RESTRICT codes, size_t n_bytes,
                          uint8_t* HWY_RESTRICT out) {
  size_t j = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<uint16_t, 8> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  const hn::Rebind<uint8_t, decltype(d)> packed;
  for (; j + hn::Lanes(d) <= n_bytes; j += hn::Lanes(d)) {
    const auto both = hn::BitCast(d, hn::LoadU(bytes, codes + 2 * j));
    const auto v = hn::Or(hn::ShiftLeft<4>(both), hn::ShiftRight<8>(both));
    hn::StoreU(hn::TruncateTo(packed, v), packed, out + j);
  }
#endif
  for (; j < n_bytes; ++j) {
    out[j] = static_cast<uint8_t>(codes[2 * j] << 4 | codes[2 * j + 1]);
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
