// Loads codes of quantized dtypes, and the scales and minima beside them, as
// f32.
#if defined(KVEVICT_CORE_DTYPES_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_CODES_INL_H_
#undef KVEVICT_CORE_DTYPES_CODES_INL_H_
#else
#define KVEVICT_CORE_DTYPES_CODES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/dtypes/plain-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Codes that are adjacent in memory. Load() converts the Lanes(df) codes from
// the i-th on to f32, exactly. If kPerByte is above 1 the i-th must be the
// first of its byte.
struct CodesU8 {
  static constexpr size_t kPerByte = 1;
  static constexpr bool kHasMinimum = true;
  template <class DF>
  static HWY_INLINE hn::VFromD<hn::RebindToSigned<DF>> Widen(
      DF, const uint8_t* codes, size_t i) {
    return hn::PromoteTo(hn::RebindToSigned<DF>(),
                         hn::LoadU(hn::Rebind<uint8_t, DF>(), codes + i));
  }
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    return hn::ConvertTo(df, Widen(df, codes, i));
  }
};

template <bool kMayHaveMinimum>
struct CodesOfI8 {
  static constexpr size_t kPerByte = 1;
  static constexpr bool kHasMinimum = kMayHaveMinimum;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    const hn::Rebind<int8_t, DF> di8;
    const auto* const from = reinterpret_cast<const int8_t*>(codes) + i;
    return hn::ConvertTo(
        df, hn::PromoteTo(hn::RebindToSigned<DF>(), hn::LoadU(di8, from)));
  }
};

// The high or the low nibbles of bytes, minus kZero.
template <bool kHigh, int32_t kZero>
struct CodesOfNibbles {
  static constexpr size_t kPerByte = 1;
  static constexpr bool kHasMinimum = kZero == 0;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    const hn::RebindToSigned<DF> di;
    const auto both = CodesU8::Widen(df, codes, i);
    const auto one =
        kHigh ? hn::ShiftRight<4>(both) : hn::And(both, hn::Set(di, 15));
    return hn::ConvertTo(df,
                         kZero == 0 ? one : hn::Sub(one, hn::Set(di, kZero)));
  }
};

// Both nibbles of a byte, the high one first, minus kZero.
template <int32_t kZero>
struct CodesOfPairs {
  static constexpr size_t kPerByte = 2;
  static constexpr bool kHasMinimum = kZero == 0;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
#if HWY_TARGET == HWY_SCALAR
    const uint8_t both = codes[i / 2];
    return hn::Set(
        df, static_cast<float>((i % 2 == 0 ? both >> 4 : both & 15) - kZero));
#else
    const hn::Rebind<uint8_t, DF> du8;
    const hn::Repartition<uint16_t, decltype(du8)> pair;
    const auto both = hn::PromoteTo(
        pair, hn::LoadU(hn::Rebind<uint8_t, decltype(pair)>(), codes + i / 2));
    const auto apart =
        hn::Or(hn::ShiftRight<4>(both),
               hn::ShiftLeft<8>(hn::And(both, hn::Set(pair, 15))));
    const hn::RebindToSigned<DF> di;
    const auto one = hn::PromoteTo(di, hn::BitCast(du8, apart));
    return hn::ConvertTo(df,
                         kZero == 0 ? one : hn::Sub(one, hn::Set(di, kZero)));
#endif
  }
};

// The upper halves of f16.
struct CodesOfUpperHalves {
  static constexpr size_t kPerByte = 1;
  static constexpr bool kHasMinimum = false;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    const hn::Rebind<uint16_t, DF> du16;
    const auto bits =
        hn::PromoteTo(du16, hn::LoadU(hn::Rebind<uint8_t, DF>(), codes + i));
    return DecodeF16::Widen(df, hn::ShiftLeft<8>(bits));
  }
};

// Other floats. They have no infinities, and all ones alone are NaN.
template <DType kDType>
struct CodesOfFloats {
  static constexpr size_t kPerByte = 1;
  static constexpr bool kHasMinimum = false;
  // As in DecodeF16, no subnormal f32 occurs in the arithmetic.
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    constexpr CodeNumbers kCodes = InfoOf(kDType).codes;
    constexpr auto kRebias = static_cast<int32_t>(kCodes.bias_bits());
    const hn::RebindToSigned<DF> di;
    const auto bits = CodesU8::Widen(df, codes, i);
    const auto most = hn::Set(di, 0x7F);
    const auto size = hn::And(bits, most);
    const auto sign = hn::ShiftLeft<24>(hn::Xor(bits, size));
    const auto rebias = hn::Set(di, kRebias);
    const auto normal =
        hn::Add(hn::ShiftLeft<23 - kCodes.fraction>(size), rebias);
    // Subnormal: the least normal number times 1 + fraction, minus that number.
    const auto one = hn::Set(di, 1 << 23);
    const auto least = hn::BitCast(df, hn::Add(rebias, one));
    const auto subnormal =
        hn::BitCast(di, hn::Sub(hn::BitCast(df, hn::Add(normal, one)), least));
    auto result = hn::IfThenElse(
        hn::Lt(size, hn::Set(di, 1 << kCodes.fraction)), subnormal, normal);
    result =
        hn::IfThenElse(hn::Eq(size, most), hn::Set(di, 0x7FC00000), result);
    return hn::BitCast(df, hn::Or(result, sign));
  }
};

// The codes of a dtype that lie one after the other: bytes, pairs, or the bytes of
// blocks.
template <DType kDType>
constexpr auto FindCodes() {
  constexpr DTypeInfo kInfo = InfoOf(kDType);
  if constexpr (kInfo.codes.is_half_of_f16()) {
    return CodesOfUpperHalves();
  } else if constexpr (kInfo.codes.is_float()) {
    return CodesOfFloats<kDType>();
  } else if constexpr (kInfo.packing == Packing::kPairs) {
    return CodesOfPairs<-kInfo.codes.lowest>();
  } else if constexpr (kInfo.codes.lowest == 0) {
    return CodesU8();
  } else {
    return CodesOfI8<kInfo.takes_minimum>();
  }
}
template <DType kDType>
using DTypeCodes = decltype(FindCodes<kDType>());

// Calls use() with a quantized dtype as a constant; false if it is not one.
template <class Use>
HWY_INLINE bool WithQuantized(DType dtype, const Use& use) {
  switch (dtype) {
#define KVEVICT_DTYPE(Name, ...)                            \
  case DType::k##Name:                                      \
    if constexpr (InfoOf(DType::k##Name).is_quantized()) {  \
      use(std::integral_constant<DType, DType::k##Name>()); \
    }                                                       \
    return InfoOf(DType::k##Name).is_quantized();
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
  }
  return false;
}

// The factor of codes, and what is added to the product.
struct Unscaled {
  float scale = 1.0f;
  float minimum = 0.0f;
};

HWY_INLINE float LoadNumber(const uint8_t* from, DType dtype) {
  const hn::CappedTag<float, 1> one;
  switch (dtype) {
    case DType::kF16:
      return hn::GetLane(DecodeF16::Load(one, from));
    case DType::kBF16:
      return hn::GetLane(DecodeBF16::Load(one, from));
    default:
      return hn::GetLane(DecodeF32::Load(one, from));
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
