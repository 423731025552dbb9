// Stores rows of f32 as quantized dtypes, with a scale and a minimum per row if
// those move; see docs/dtypes.md.
#if defined(KVEVICT_CORE_DTYPES_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_QUANTIZE_INL_H_
#undef KVEVICT_CORE_DTYPES_QUANTIZE_INL_H_
#else
#define KVEVICT_CORE_DTYPES_QUANTIZE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dtype.h"
#include "core/dtypes/codes-inl.h"
#include "core/dtypes/encode-inl.h"
#include "core/dtypes/load-inl.h"
#include "core/dtypes/store-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- Scales and minima ----

// The smallest number of a dtype that is not below v, because ranges must be
// covered.
HWY_INLINE float RoundedUp(float v, DType dtype) {
  if (dtype == DType::kF32) return v;
  // As large as an f32, since the compiler sees that LoadNumber() may read one.
  uint16_t bits[2] = {
      dtype == DType::kF16 ? EncodeF16::Bits(v) : EncodeBF16::Bits(v), 0};
  const auto value = [&]() HWY_ATTR {
    return LoadNumber(reinterpret_cast<const uint8_t*>(bits), dtype);
  };
  if (value() >= v) return value();
  bits[0] = static_cast<uint16_t>(value() < 0 ? bits[0] - 1 : bits[0] + 1);
  return value();
}
HWY_INLINE float RoundedDown(float v, DType dtype) {
  return -RoundedUp(-v, dtype);
}

HWY_INLINE void StoreNumber(float v, DType dtype, uint8_t* to) {
  if (std::isnan(v))
    v = std::numeric_limits<float>::quiet_NaN();  // always the same NaN
  if (dtype == DType::kF32) {
    std::memcpy(to, &v, sizeof(v));
    return;
  }
  const uint16_t bits =
      dtype == DType::kF16 ? EncodeF16::Bits(v) : EncodeBF16::Bits(v);
  std::memcpy(to, &bits, sizeof(bits));
}

// Steps are never subnormal, because dividing by one would not be exact enough.
HWY_INLINE float StepOf(float range, float n_steps) {
  if (!(range > 0.0f)) return 0.0f;
  return std::max(range / n_steps, std::numeric_limits<float>::min());
}

// ---- The range of a row ----

struct RowRange {
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
  float poison = 0.0f;  // NaN if there is NaN or infinity
  float size() const { return std::max(-min, max) + 0.0f; }  // not -0
};

HWY_INLINE void Widen(const float* HWY_RESTRICT from, size_t n,
                      RowRange& range) {
  const RowTag df;
  const size_t lanes = hn::Lanes(df);
  const auto zero = hn::Zero(df);
  auto min0 = hn::Set(df, range.min), max0 = hn::Set(df, range.max);
  auto min1 = min0, max1 = max0, poison = zero;
  const size_t whole = n - n % (2 * lanes);
  for (size_t i = 0; i < whole; i += 2 * lanes) {
    const auto v0 = hn::LoadU(df, from + i);
    const auto v1 = hn::LoadU(df, from + i + lanes);
    min0 = hn::Min(v0, min0);
    max0 = hn::Max(v0, max0);
    min1 = hn::Min(v1, min1);
    max1 = hn::Max(v1, max1);
    poison = hn::MulAdd(v0, zero, poison);
    poison = hn::MulAdd(v1, zero, poison);
  }
  range.min = hn::ReduceMin(df, hn::Min(min0, min1));
  range.max = hn::ReduceMax(df, hn::Max(max0, max1));
  if (!hn::AllFalse(df, hn::IsNaN(poison))) {
    range.poison = std::numeric_limits<float>::quiet_NaN();
  }
  for (size_t i = whole; i < n; ++i) {
    range.min = std::min(range.min, from[i]);
    range.max = std::max(range.max, from[i]);
    range.poison += from[i] * 0.0f;
  }
}

// The largest absolute value of a finite element, at least `largest`.
HWY_INLINE float FiniteSize(const float* HWY_RESTRICT from, size_t n,
                            float largest) {
  const RowTag df;
  const size_t lanes = hn::Lanes(df);
  const auto infinity = hn::Set(df, std::numeric_limits<float>::infinity());
  auto most = hn::Set(df, largest);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto size = hn::Abs(hn::LoadU(df, from + i));
    most = hn::Max(most, hn::IfThenElseZero(hn::Lt(size, infinity), size));
  }
  largest = hn::ReduceMax(df, most);
  for (; i < n; ++i) {
    const float size = std::abs(from[i]);
    if (size <= std::numeric_limits<float>::max()) {
      largest = std::max(largest, size);
    }
  }
  return largest;
}

// ---- Rows ----

// The most elements that are processed at once.
inline constexpr size_t kRowPart = 1024;

// A row as floats, one part at a time.
class FloatRow {
 public:
  FloatRow() = default;
  FloatRow(const RowSource& rows, uint32_t r, float* HWY_RESTRICT buffer)
      : rows_(&rows), r_(r), buffer_(buffer) {
    if (rows.dtype == DType::kF32 && rows.IsPacked(sizeof(float)) &&
        reinterpret_cast<uintptr_t>(rows.Row(r)) % alignof(float) == 0) {
      all_ = reinterpret_cast<const float*>(rows.Row(r));
    } else if (rows.n_elements <= kRowPart) {
      LoadRow(rows, r, 0, rows.n_elements, buffer);
      all_ = buffer;
    }
  }
  size_t size() const { return rows_->n_elements; }
  // All elements, if there is room for them.
  const float* all() const { return all_; }
  // Elements [first, first + n). Only the last part that was read is in the
  // buffer.
  const float* Part(size_t first, size_t n) const {
    if (all_ != nullptr) return all_ + first;
    LoadRow(*rows_, r_, first, n, buffer_);
    return buffer_;
  }
  // visit(part, first, n) with parts that are a multiple of 32.
  template <class Visit>
  HWY_INLINE void ForEachPart(const Visit& visit) const {
    for (size_t first = 0; first < size(); first += kRowPart) {
      const size_t n = std::min(kRowPart, size() - first);
      visit(Part(first, n), first, n);
    }
  }

 private:
  const RowSource* rows_ = nullptr;
  uint32_t r_ = 0;
  float* buffer_ = nullptr;
  const float* all_ = nullptr;  // if all of it is in memory
};

HWY_INLINE RowRange RangeOf(const FloatRow& row) {
  RowRange range;
  row.ForEachPart([&](const float* part, size_t, size_t n)
                      HWY_ATTR { Widen(part, n, range); });
  return range;
}

// The scale and minimum for a range, and the codes that they allow.
HWY_INLINE ToInteger NumbersOf(const RowRange& range, const RowSource& to,
                               float lowest, float highest) {
  ToInteger by{0.0f, 0.0f, lowest, highest};
  if (to.minimum.base == nullptr) {
    by.lowest = -highest;
    by.scale = StepOf(range.size(), highest);
  } else if (lowest == 0.0f) {
    by.minimum = RoundedDown(range.min, to.minimum.dtype);
    by.scale = StepOf(range.max - by.minimum, highest);
  } else {
    // The minimum is the number of code 0. Both ends are reached from there.
    const float step = RoundedUp(
        StepOf(range.max - range.min, highest - lowest), to.scale.dtype);
    by.minimum = RoundedUp(range.min - lowest * step, to.minimum.dtype);
    by.scale = std::max(StepOf(by.minimum - range.min, -lowest),
                        StepOf(range.max - by.minimum, highest));
  }
  by.scale = RoundedUp(by.scale, to.scale.dtype);
  by.minimum += 0.0f;  // not -0: which zero is the least depends on the target
  // NaN if one of them is NaN or infinite.
  by.scale += (by.scale + by.minimum) * 0.0f + range.poison;
  return by;
}

// Writes the scale and minimum in `by` of row r.
HWY_INLINE void StoreNumbers(const ToInteger& by, const RowSource& to,
                             uint32_t r) {
  StoreNumber(by.scale, to.scale.dtype,
              const_cast<uint8_t*>(to.Number(to.scale, r)));
  if (to.minimum.base == nullptr) return;
  const float minimum = std::isnan(by.scale) ? 0.0f : by.minimum;
  StoreNumber(minimum, to.minimum.dtype,
              const_cast<uint8_t*>(to.Number(to.minimum, r)));
}

// The scale and minimum with which row r is encoded. Those that are constant
// are read.
HWY_INLINE ToInteger IntegersOf(const FloatRow& row, const RowSource& to,
                                uint32_t r, float lowest, float highest) {
  if (!to.scale.is_constant) {
    ToInteger by = NumbersOf(RangeOf(row), to, lowest, highest);
    StoreNumbers(by, to, r);
    // All codes become 0, whatever is in the row.
    if (!(by.scale > 0.0f)) by.lowest = by.highest = 0.0f;
    return by;
  }
  ToInteger by{LoadNumber(to.scale.base, to.scale.dtype), 0.0f, lowest,
               highest};
  if (to.minimum.base != nullptr) {
    by.minimum = LoadNumber(to.minimum.base, to.minimum.dtype);
  }
  return by;
}

// The scale of a row of floats whose largest number is `largest`.
HWY_INLINE float ScaleOf(const FloatRow& row, const RowSource& to, uint32_t r,
                         float largest) {
  if (to.scale.base == nullptr) return 1.0f;
  if (to.scale.is_constant) return LoadNumber(to.scale.base, to.scale.dtype);
  float size = 0.0f;
  row.ForEachPart([&](const float* part, size_t, size_t n)
                      HWY_ATTR { size = FiniteSize(part, n, size); });
  float scale =
      size > 0.0f ? RoundedUp(StepOf(size, largest), to.scale.dtype) : 1.0f;
  scale += scale * 0.0f;
  StoreNumber(scale, to.scale.dtype,
              const_cast<uint8_t*>(to.Number(to.scale, r)));
  return scale;
}

// How a row is encoded.
struct RowCoder {
  ToInteger by;
  // inverse of the step, if all values are within the range
  float inverse = 0.0f;
};

// The coder for row r of `to`, of a quantized dtype. Writes its scale and
// minimum if they move. This is a function of its own so that the dependency
// chains of several rows overlap.
inline HWY_NOINLINE RowCoder CoderOf(const FloatRow& row, const RowSource& to,
                                     uint32_t r) {
  RowCoder coder{};
  const DTypeInfo& info = InfoOf(to.dtype);
  const CodeNumbers& codes = info.codes;
  if (codes.is_float()) {
    coder.by.scale =
        ScaleOf(row, to, r, std::bit_cast<float>(codes.largest_bits()));
  } else if (info.is_scaled_integer()) {  // blocks have scales of their own
    coder.by = IntegersOf(row, to, r, static_cast<float>(codes.lowest),
                          static_cast<float>(codes.highest));
    if (!to.scale.is_constant && coder.by.scale > 0.0f) {
      coder.inverse = 1.0f / coder.by.scale;
    }
  }
  return coder;
}

template <class Use>
HWY_INLINE void WithIntegers(const RowCoder& coder, const Use& use) {
  if (coder.inverse != 0.0f) {
    use(ToReached{coder.by.scale, coder.by.minimum, coder.inverse});
  } else {
    use(coder.by);
  }
}

// Writes codes to elements [first, first + n) of a row of one byte each.
HWY_INLINE void ScatterBytes(const uint8_t* HWY_RESTRICT codes,
                             const RowSource& to, uint8_t* row, size_t first,
                             size_t n) {
  for (size_t i = 0; i < n; ++i) row[to.Element(first + i)] = codes[i];
}

template <class Encode>
HWY_INLINE void StoreBytewise(const Encode& encode, const FloatRow& from,
                              const RowSource& to, uint8_t* row) {
  uint8_t codes[kRowPart];
  from.ForEachPart([&](const float* part, size_t first, size_t n) HWY_ATTR {
    if (to.IsPacked(1)) return EncodeBytes(encode, part, n, row + first);
    EncodeBytes(encode, part, n, codes);
    ScatterBytes(codes, to, row, first, n);
  });
}

template <class Encode>
HWY_INLINE void StorePairs(const Encode& encode, const FloatRow& from,
                           uint8_t* row) {
  uint8_t codes[kRowPart];
  from.ForEachPart([&](const float* part, size_t first, size_t n) HWY_ATTR {
    EncodeBytes(encode, part, n, codes);
    PackPairs(codes, n / 2, row + first / 2);
  });
}

template <class Encode>
HWY_INLINE void StoreHalves(const Encode& encode, const FloatRow& from,
                            uint8_t* row) {
  uint8_t low[kRowPart], high[kRowPart];
  const size_t half = from.size() / 2;
  for (size_t first = 0; first < half; first += kRowPart) {
    const size_t n = std::min(kRowPart, half - first);
    EncodeBytes(encode, from.Part(first, n), n, low);
    EncodeBytes(encode, from.Part(half + first, n), n, high);
    PackNibbles(low, high, n, row + first);
  }
}

// For a ggml block of 32: writes the scale d as f16, or NaN if it does not fit,
// and returns its inverse in f32. 0 if all elements are 0 or the scale is NaN.
HWY_INLINE float StoreBlockScale(float d, float poison, uint8_t* to) {
  uint16_t bits = EncodeF16::Bits(std::isnan(poison) ? poison : d);
  if ((bits & 0x7C00) == 0x7C00) bits = 0x7E00;
  std::memcpy(to, &bits, sizeof(bits));
  if (bits == 0x7E00 || d == 0.0f) return 0.0f;
  const float inverse = 1.0f / d;
  return std::isinf(inverse) ? 0.0f : inverse;
}

// Writes the scale of a block of 32 and returns its inverse, likewise.
HWY_INLINE float ScaleQ8Block(const float* HWY_RESTRICT from, uint8_t* to) {
  const RowTag df;
  const hn::RebindToSigned<RowTag> di;
  // Compares absolute values as bits, in which order NaN and infinity come
  // last.
  auto most = hn::Zero(di);
  for (size_t i = 0; i < 32; i += hn::Lanes(df)) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(df, from + i))));
  }
  const auto largest =
      std::bit_cast<float>(static_cast<int32_t>(hn::ReduceMax(di, most)));
  return StoreBlockScale(largest / 127.0f, largest * 0.0f, to);
}

HWY_INLINE float ScaleQ4Block(const float* HWY_RESTRICT from, uint8_t* to) {
  RowRange range;
  Widen(from, 32, range);
  // The first element of the largest absolute value, with its sign.
  float most = range.max;
  if (-range.min > range.max) most = range.min;
  if (-range.min == range.max) {
    most = *std::find_if(from, from + 32, [&](const float& v) {
      return v == range.min || v == range.max;
    });
  }
  // ggml's scale is -0 if all elements are 0.
  return StoreBlockScale((most + 0.0f) / -8.0f, range.poison, to);
}

HWY_INLINE void StoreQ8Codes(const float* HWY_RESTRICT from, float inverse,
                             uint8_t* to) {
  if (inverse == 0.0f) {
    std::memset(to, 0, 32);
  } else {
    EncodeBytes(ToQ8{inverse}, from, 32, to);
  }
}

HWY_INLINE void StoreQ4Codes(const float* HWY_RESTRICT from, float inverse,
                             uint8_t* to) {
  uint8_t codes[32];
  if (inverse == 0.0f) {
    std::memset(codes, 8, sizeof(codes));
  } else {
    EncodeBytes(ToQ4{inverse}, from, 32, codes);
  }
  PackNibbles(codes, codes + 16, 16, to);
}

// Computes all scales of a part first, since they do not depend on each other.
template <size_t kBytes, class Scale, class Store>
HWY_INLINE void StoreBlocks(const FloatRow& from, uint8_t* row,
                            const Scale& scale, const Store& store) {
  from.ForEachPart([&](const float* part, size_t first, size_t n) HWY_ATTR {
    float inverses[kRowPart / 32];
    uint8_t* const to = row + first / 32 * kBytes;
    for (size_t b = 0; b < n / 32; ++b) {
      inverses[b] = scale(part + 32 * b, to + kBytes * b);
    }
    for (size_t b = 0; b < n / 32; ++b) {
      store(part + 32 * b, inverses[b], to + kBytes * b + sizeof(uint16_t));
    }
  });
}

// Stores row r of `to`, of a quantized dtype, with its coder.
inline HWY_NOINLINE void StoreQuantized(const RowCoder& coder,
                                        const FloatRow& from,
                                        const RowSource& to, uint32_t r) {
  auto* const row = const_cast<uint8_t*>(to.Row(r));
  const auto bytewise = [&](const auto& encode)
                            HWY_ATTR { StoreBytewise(encode, from, to, row); };
  const DTypeInfo& info = InfoOf(to.dtype);
  if (info.codes.is_float()) {
    WithQuantized(to.dtype, [&](auto dtype) HWY_ATTR {
      constexpr DType kTo = decltype(dtype)::value;
      if constexpr (InfoOf(kTo).codes.is_float()) {
        bytewise(ToSmallFloat<kTo>{coder.by.scale});
      }
    });
    return;
  }
  switch (info.packing) {
    case Packing::kBytes:
      return WithIntegers(coder, bytewise);
    case Packing::kPairs:
      return WithIntegers(coder, [&](const auto& encode) HWY_ATTR {
        StorePairs(encode, from, row);
      });
    case Packing::kHalves:
      return WithIntegers(coder, [&](const auto& encode) HWY_ATTR {
        StoreHalves(encode, from, row);
      });
    default:
      break;
  }
  if (to.dtype == DType::kQ8_0) {
    StoreBlocks<34>(
        from, row,
        [](const float* block, uint8_t* to_block)
            HWY_ATTR { return ScaleQ8Block(block, to_block); },
        [](const float* block, float inverse, uint8_t* codes)
            HWY_ATTR { StoreQ8Codes(block, inverse, codes); });
  } else if (to.dtype == DType::kQ4_0) {
    StoreBlocks<18>(
        from, row,
        [](const float* block, uint8_t* to_block)
            HWY_ATTR { return ScaleQ4Block(block, to_block); },
        [](const float* block, float inverse, uint8_t* codes)
            HWY_ATTR { StoreQ4Codes(block, inverse, codes); });
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
