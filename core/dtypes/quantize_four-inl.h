// Quantizes four rows at once, to the same bytes as quantize-inl.h. The latency
// of computing a row's scale is shared by four.
#if defined(KVEVICT_CORE_DTYPES_QUANTIZE_FOUR_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_QUANTIZE_FOUR_INL_H_
#undef KVEVICT_CORE_DTYPES_QUANTIZE_FOUR_INL_H_
#else
#define KVEVICT_CORE_DTYPES_QUANTIZE_FOUR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dtypes/quantize-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

inline constexpr uint32_t kFour = 4;

// from[i] is to be stored in row row[i] of to[i].
struct FourRows {
  const float* from[kFour];
  const RowSource* to[kFour];
  uint32_t row[kFour];
  // past the caches; only for u8 with rows aligned to 16 bytes
  bool streams = false;
};

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE || HWY_TARGET_IS_SVE

// Vectors of scalable targets cannot be in arrays.
HWY_INLINE bool CodesFour(const RowSource&) { return false; }
HWY_INLINE bool StoreFour(const FourRows&, size_t) { return false; }

#else

template <class D, class Op>
HWY_INLINE hn::Vec<hn::FixedTag<hn::TFromD<D>, kFour>> ReduceBlocks(
    D, const Op& op, hn::VFromD<D> v) {
  if constexpr (D::kPrivateLanes <= kFour) {
    return v;
  } else {
    const hn::Half<D> half;
    return ReduceBlocks(half, op,
                        op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Lane i is the reduction of all lanes of the i-th vector.
template <class D, class Op>
HWY_INLINE hn::Vec<hn::FixedTag<hn::TFromD<D>, kFour>> ReduceFour(
    D d, const Op& op, const hn::VFromD<D> (&v)[kFour]) {
  const hn::RepartitionToWide<D> pairs;
  const auto two = [&](hn::VFromD<D> a, hn::VFromD<D> b) HWY_ATTR {
    return hn::BitCast(
        pairs, op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto first = two(v[0], v[1]), last = two(v[2], v[3]);
  return ReduceBlocks(
      d, op,
      op(hn::BitCast(d, hn::InterleaveLower(pairs, first, last)),
         hn::BitCast(d, hn::InterleaveUpper(pairs, first, last))));
}

// Whether rows are quantized four at a time: unsigned integers with scale and
// minimum in f32, or blocks of q8_0, with packed elements.
HWY_INLINE bool CodesFour(const RowSource& to) {
  const size_t n = to.n_elements;
  if (n > kRowPart || n % (2 * hn::Lanes(RowTag())) != 0) return false;
  const auto moves = [](const RowNumbers& numbers) {
    return numbers.base != nullptr && !numbers.is_constant &&
           numbers.group_rows == 0 && numbers.dtype == DType::kF32;
  };
  const DTypeInfo& info = InfoOf(to.dtype);
  if (!info.is_scaled_integer()) return to.dtype == DType::kQ8_0;
  return info.codes.lowest == 0 && moves(to.scale) && moves(to.minimum) &&
         (info.packing != Packing::kBytes || to.IsPacked(1));
}

// ---- Integers, a scale and a minimum per row ----

struct FourNumbers {
  HWY_ALIGN float scale[kFour], minimum[kFour], inverse[kFour];
};

// False if a row has NaN or infinity, only one value, or a range beyond f32.
HWY_INLINE bool FindNumbers(const FourRows& rows, size_t n, float highest,
                            FourNumbers* numbers) {
  const RowTag df;
  const FourTag d4;
  const size_t lanes = hn::Lanes(df);
  const auto zero = hn::Zero(df);
  hn::Vec<RowTag> mins[kFour], maxs[kFour];
  auto poison = zero;
  for (uint32_t r = 0; r < kFour; ++r) {
    const float* const from = rows.from[r];
    auto min0 = hn::LoadU(df, from), min1 = hn::LoadU(df, from + lanes);
    auto max0 = min0, max1 = min1;
    auto poison0 = hn::Mul(min0, zero), poison1 = hn::Mul(min1, zero);
    for (size_t i = 2 * lanes; i < n; i += 2 * lanes) {
      const auto v0 = hn::LoadU(df, from + i);
      const auto v1 = hn::LoadU(df, from + i + lanes);
      min0 = hn::Min(min0, v0);
      max0 = hn::Max(max0, v0);
      min1 = hn::Min(min1, v1);
      max1 = hn::Max(max1, v1);
      poison0 = hn::MulAdd(v0, zero, poison0);
      poison1 = hn::MulAdd(v1, zero, poison1);
    }
    mins[r] = hn::Min(min0, min1);
    maxs[r] = hn::Max(max0, max1);
    poison = hn::Add(poison, hn::Add(poison0, poison1));
  }
  const auto min = ReduceFour(
      df, [](auto a, auto b) HWY_ATTR { return hn::Min(a, b); }, mins);
  const auto max = ReduceFour(
      df, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); }, maxs);
  const auto minimum = hn::Add(min, hn::Zero(d4));  // not -0
  const auto range = hn::Sub(max, minimum);
  const auto least = hn::Set(d4, std::numeric_limits<float>::min());
  const auto scale = hn::Max(hn::Div(range, hn::Set(d4, highest)), least);
  hn::Store(scale, d4, numbers->scale);
  hn::Store(minimum, d4, numbers->minimum);
  hn::Store(hn::Div(hn::Set(d4, 1.0f), scale), d4, numbers->inverse);
  const auto is_usual =
      hn::And(hn::Gt(range, hn::Zero(d4)), hn::Lt(range, hn::Inf(d4)));
  return hn::AllFalse(df, hn::IsNaN(poison)) && hn::AllTrue(d4, is_usual);
}

// Stores the codes of a row. It is aligned if they are written past the caches.
HWY_INLINE void StoreCodes(const ToReached& encode, const float* from, size_t n,
                           Packing packing, bool streams, uint8_t* row) {
  if (packing == Packing::kBytes) {
    if (streams) return StreamBytes(encode, from, n, row);
    return EncodeBytes(encode, from, n, row);
  }
  uint8_t codes[kRowPart];
  EncodeBytes(encode, from, n, codes);
  if (packing == Packing::kPairs) return PackPairs(codes, n / 2, row);
  PackNibbles(codes, codes + n / 2, n / 2, row);
}

HWY_INLINE bool StoreFourIntegers(const FourRows& rows, size_t n) {
  const DTypeInfo& info = InfoOf(rows.to[0]->dtype);
  FourNumbers numbers;
  if (!FindNumbers(rows, n, static_cast<float>(info.codes.highest), &numbers)) {
    return false;
  }
  for (uint32_t r = 0; r < kFour; ++r) {
    const RowSource& to = *rows.to[r];
    const auto number = [&](const RowNumbers& beside, float v) HWY_ATTR {
      std::memcpy(const_cast<uint8_t*>(to.Number(beside, rows.row[r])), &v,
                  sizeof(v));
    };
    number(to.scale, numbers.scale[r]);
    number(to.minimum, numbers.minimum[r]);
    StoreCodes({numbers.scale[r], numbers.minimum[r], numbers.inverse[r]},
               rows.from[r], n, info.packing, rows.streams,
               const_cast<uint8_t*>(to.Row(rows.row[r])));
  }
  return true;
}

// ---- q8_0 ----

// Stores four blocks of 32 from `from` on. False if a scale is unusual.
HWY_INLINE bool StoreFourBlocks(const float* HWY_RESTRICT from, uint8_t* to) {
  constexpr size_t kBytes = 34;
  const RowTag df;
  const hn::RebindToSigned<RowTag> di;
  const FourTag d4;
  const auto larger = [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); };
  hn::Vec<decltype(di)> sizes[kFour];
  for (size_t b = 0; b < kFour; ++b) {
    sizes[b] = hn::Zero(di);
    for (size_t i = 0; i < 32; i += hn::Lanes(df)) {
      const auto v = hn::LoadU(df, from + 32 * b + i);
      sizes[b] = hn::Max(sizes[b], hn::BitCast(di, hn::Abs(v)));
    }
  }
  const auto largest = hn::BitCast(d4, ReduceFour(di, larger, sizes));
  const auto d = hn::Div(largest, hn::Set(d4, 127.0f));
  // Excludes scales that f16 rounds to infinity and those without an inverse in
  // f32.
  const auto is_usual =
      hn::And(hn::Lt(d, hn::Set(d4, 65519.0f)), hn::Gt(d, hn::Set(d4, 1e-37f)));
  if (!hn::AllTrue(d4, is_usual)) return false;
  HWY_ALIGN float inverses[kFour];
  uint8_t scales[kFour * sizeof(uint16_t)];
  hn::Store(hn::Div(hn::Set(d4, 1.0f), d), d4, inverses);
  EncodeF16::Store(d4, d, scales);
  for (size_t b = 0; b < kFour; ++b) {
    std::memcpy(to + kBytes * b, scales + 2 * b, sizeof(uint16_t));
    EncodeBytes(ToQ8{inverses[b]}, from + 32 * b, 32, to + kBytes * b + 2);
  }
  return true;
}

HWY_INLINE bool StoreFourOfBlocks(const FourRows& rows, size_t n) {
  if (n % 128 != 0) return false;
  for (uint32_t r = 0; r < kFour; ++r) {
    auto* const row = const_cast<uint8_t*>(rows.to[r]->Row(rows.row[r]));
    for (size_t i = 0; i < n; i += 128) {
      if (!StoreFourBlocks(rows.from[r] + i, row + i / 32 * 34)) return false;
    }
  }
  return true;
}

// Writes the rows, or returns false if one needs the general code.
HWY_INLINE bool StoreFour(const FourRows& rows, size_t n) {
  if (rows.to[0]->dtype == DType::kQ8_0) return StoreFourOfBlocks(rows, n);
  return StoreFourIntegers(rows, n);
}

#endif

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
