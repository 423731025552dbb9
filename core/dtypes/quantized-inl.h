// Rows of quantized dtypes, as f32. A new one is codes more, or a case below.
#if defined(KVEVICT_CORE_DTYPES_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_DTYPES_QUANTIZED_INL_H_
#undef KVEVICT_CORE_DTYPES_QUANTIZED_INL_H_
#else
#define KVEVICT_CORE_DTYPES_QUANTIZED_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/dtypes/plain-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Codes that follow each other in memory: Load() turns the Lanes(df) from the i-th on
// into f32, exactly; so many lie in a byte, where the i-th may be its first.
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

// Those of half the bytes' nibbles, less kZero.
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

// Both nibbles of a byte, the high one first.
struct CodesU4 {
  static constexpr size_t kPerByte = 2;
  static constexpr bool kHasMinimum = true;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
#if HWY_TARGET == HWY_SCALAR
    const uint8_t both = codes[i / 2];
    return hn::Set(df, static_cast<float>(i % 2 == 0 ? both >> 4 : both & 15));
#else
    const hn::Rebind<uint8_t, DF> du8;
    const hn::Repartition<uint16_t, decltype(du8)> pair;
    const auto both = hn::PromoteTo(
        pair, hn::LoadU(hn::Rebind<uint8_t, decltype(pair)>(), codes + i / 2));
    const auto apart =
        hn::Or(hn::ShiftRight<4>(both),
               hn::ShiftLeft<8>(hn::And(both, hn::Set(pair, 15))));
    return hn::ConvertTo(
        df, hn::PromoteTo(hn::RebindToSigned<DF>(), hn::BitCast(du8, apart)));
#endif
  }
};

struct CodesE4M3 {
  static constexpr size_t kPerByte = 1;
  static constexpr bool kHasMinimum = false;
  // None of the arithmetic sees a subnormal f32, as in DecodeF16.
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::BitCast(du, CodesU8::Widen(df, codes, i));
    const auto size = hn::And(bits, hn::Set(du, 0x7Fu));
    const auto sign = hn::ShiftLeft<24>(hn::Xor(bits, size));
    const auto rebias = hn::Set(du, (127u - 7u) << 23);
    const auto normal = hn::Add(hn::ShiftLeft<20>(size), rebias);
    // Subnormal: 2^-6 (1 + fraction) - 2^-6.
    const auto one = hn::Set(du, 1u << 23);
    const auto least = hn::BitCast(df, hn::Add(rebias, one));
    const auto subnormal =
        hn::BitCast(du, hn::Sub(hn::BitCast(df, hn::Add(normal, one)), least));
    auto result =
        hn::IfThenElse(hn::Lt(size, hn::Set(du, 8u)), subnormal, normal);
    result = hn::IfThenElse(hn::Eq(size, hn::Set(du, 0x7Fu)),
                            hn::Set(du, 0x7FC00000u), result);
    return hn::BitCast(df, hn::Or(result, sign));
  }
};

struct CodesE5M2 {
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

// What codes are multiplied by, and what is added then.
struct Unscaled {
  float scale = 1.0f;
  float minimum = 0.0f;
};

// out[0, n) = n codes, in whole bytes.
template <class Codes>
HWY_INLINE void LoadCodes(const uint8_t* codes, size_t n, const Unscaled& by,
                          float* HWY_RESTRICT out) {
  const RowTag df;
  const size_t lanes = hn::Lanes(df);
  const auto scale = hn::Set(df, by.scale);
  const auto minimum = hn::Set(df, by.minimum);
  const auto load = [&](const uint8_t* from, size_t i) HWY_ATTR {
    const auto v = Codes::Load(df, from, i);
    return Codes::kHasMinimum ? hn::MulAdd(v, scale, minimum)
                              : hn::Mul(v, scale);
  };
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load(codes, i), df, out + i);
  if (i == n) return;
  // What is left, through a copy, so that nothing behind it is read.
  uint8_t rest[kRowPad] = {};
  float loaded[kRowPad];
  std::memcpy(rest, codes + i / Codes::kPerByte,
              (n - i + Codes::kPerByte - 1) / Codes::kPerByte);
  hn::StoreU(load(rest, 0), df, loaded);
  std::copy_n(loaded, n - i, out + i);
}

// Elements [first, first + n) of a row of one byte each, wherever they lie.
template <class Codes>
HWY_INLINE void LoadBytewise(const RowSource& rows, const uint8_t* row,
                             size_t first, size_t n, const Unscaled& by,
                             float* HWY_RESTRICT out) {
  if (rows.IsPacked(1)) return LoadCodes<Codes>(row + first, n, by, out);
  for (size_t i = 0; i < n; i += kRowPad) {
    const size_t n_now = std::min(kRowPad, n - i);
    uint8_t packed[kRowPad];
    CopyElements(rows, row, first + i, n_now, packed);
    LoadCodes<Codes>(packed, n_now, by, out + i);
  }
}

// Elements [first, first + n) of blocks, each an f16 and codes: load(codes of the block,
// first element, n, scale, out).
template <DType kDType, class Load>
HWY_INLINE void LoadBlocks(const uint8_t* row, size_t first, size_t n,
                           const Load& load, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 1> one;
  constexpr size_t kBlock = InfoOf(kDType).block_elements;
  constexpr size_t kBytes = InfoOf(kDType).block_bytes;
  row += first / kBlock * kBytes;
  first %= kBlock;
  while (n > 0) {
    const size_t n_now = std::min(n, kBlock - first);
    const Unscaled by{hn::GetLane(DecodeF16::Load(one, row))};
    const uint8_t* const codes = row + sizeof(uint16_t);
    if (HWY_LIKELY(n_now == kBlock)) {
      load(codes, 0, kBlock, by, out);
    } else {
      load(codes, first, n_now, by, out);
    }
    row += kBytes;
    first = 0;
    out += n_now;
    n -= n_now;
  }
}

// Elements [first, first + n) of 2 * `half`, of which byte j has j in the low nibble
// and half + j in the high one.
template <int32_t kZero>
HWY_INLINE void LoadHalves(const uint8_t* codes, size_t half, size_t first,
                           size_t n, const Unscaled& by,
                           float* HWY_RESTRICT out) {
  const size_t n_low = first < half ? std::min(n, half - first) : 0;
  if (n_low > 0) {
    LoadCodes<CodesOfNibbles<false, kZero>>(codes + first, n_low, by, out);
  }
  if (n_low < n) {
    LoadCodes<CodesOfNibbles<true, kZero>>(codes + (first + n_low - half),
                                           n - n_low, by, out + n_low);
  }
}

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

// Those of a row; where elements have some each, none.
HWY_INLINE Unscaled NumbersOf(const RowSource& rows, uint32_t r) {
  Unscaled by;
  if (rows.scale.group_rows != 0) return by;
  if (rows.scale.base != nullptr) {
    by.scale = LoadNumber(rows.Number(rows.scale, r), rows.scale.dtype);
  }
  if (rows.minimum.base != nullptr) {
    by.minimum = LoadNumber(rows.Number(rows.minimum, r), rows.minimum.dtype);
  }
  return by;
}

// Elements [i, i + lanes) of n packed numbers that stand for themselves; behind them 0.
HWY_INLINE hn::VFromD<RowTag> LoadNumbers(const uint8_t* from, DType dtype,
                                          size_t i, size_t n) {
  const RowTag df;
  const size_t bytes = ElementBytes(dtype);
  uint8_t rest[kRowPad * sizeof(float)];
  from += i * bytes;
  if (HWY_UNLIKELY(i + hn::Lanes(df) > n)) {
    std::memset(rest, 0, sizeof(rest));
    std::memcpy(rest, from, (n - i) * bytes);
    from = rest;
  }
  switch (dtype) {
    case DType::kF16:
      return DecodeF16::Load(df, from);
    case DType::kBF16:
      return DecodeBF16::Load(df, from);
    default:
      return DecodeF32::Load(df, from);
  }
}

// out[0, n) = elements [first, first + n) of a row that is not quantized.
HWY_INLINE void LoadRecent(const RowSource& rows, uint32_t r, size_t first,
                           size_t n, float* HWY_RESTRICT out) {
  const RecentRows& recent = rows.recent;
  const RowTag df;
  const uint8_t* const row = recent.base +
                             int64_t{r - recent.first} * recent.row_stride +
                             first * ElementBytes(recent.dtype);
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    hn::StoreU(LoadNumbers(row, recent.dtype, i, n), df, out + i);
  }
}

// out[0, n), codes of elements from `first` on of row r, become what they stand for.
HWY_INLINE void ScaleElements(const RowSource& rows, uint32_t r, size_t first,
                              size_t n, float* HWY_RESTRICT out) {
  const RowTag df;
  const auto numbers_of = [&](const RowNumbers& numbers) HWY_ATTR {
    return rows.Number(numbers, r) + first * ElementBytes(numbers.dtype);
  };
  const uint8_t* const scales = numbers_of(rows.scale);
  const bool has_minimum = rows.minimum.base != nullptr;
  const uint8_t* const minima =
      has_minimum ? numbers_of(rows.minimum) : nullptr;
  for (size_t i = 0; i < n; i += hn::Lanes(df)) {
    const auto code = hn::LoadU(df, out + i);
    const auto scale = LoadNumbers(scales, rows.scale.dtype, i, n);
    hn::StoreU(has_minimum
                   ? hn::MulAdd(code, scale,
                                LoadNumbers(minima, rows.minimum.dtype, i, n))
                   : hn::Mul(code, scale),
               df, out + i);
  }
}

// What LoadRowOf() says, of quantized rows: some, `stride` floats apart, so that what a
// dtype is is asked once.
inline HWY_NOINLINE void LoadQuantized(const RowSource& rows,
                                       const uint32_t* list, uint32_t n_rows,
                                       size_t first, size_t n, size_t stride,
                                       float* HWY_RESTRICT out) {
  const auto load = [&](const auto& load_row) HWY_ATTR {
    for (uint32_t i = 0; i < n_rows; ++i, out += stride) {
      const uint32_t r = list[i];
      if (HWY_LIKELY(r < rows.recent.first)) {
        load_row(rows.Row(r), NumbersOf(rows, r), out);
        if (rows.scale.group_rows != 0) ScaleElements(rows, r, first, n, out);
      } else {
        LoadRecent(rows, r, first, n, out);
      }
      if (n % kRowPad != 0) std::fill(out + n, out + PaddedRow(n), 0.0f);
    }
  };
  const auto load_codes = [&](auto codes) HWY_ATTR {
    load([&](const uint8_t* row, const Unscaled& by, float* to) HWY_ATTR {
      LoadBytewise<decltype(codes)>(rows, row, first, n, by, to);
    });
  };
  switch (rows.dtype) {
    case DType::kE4M3:
      return load_codes(CodesE4M3());
    case DType::kE5M2:
      return load_codes(CodesE5M2());
    case DType::kU8:
      return load_codes(CodesU8());
    case DType::kI8:
      return load_codes(CodesOfI8<true>());
    case DType::kU4:
      return load(
          [&](const uint8_t* row, const Unscaled& by, float* to) HWY_ATTR {
            const size_t n_odd = std::min(n, first % 2);
            LoadCodes<CodesOfNibbles<false, 0>>(row + first / 2, n_odd, by, to);
            LoadCodes<CodesU4>(row + (first + n_odd) / 2, n - n_odd, by,
                               to + n_odd);
          });
    case DType::kU4Halves:
      return load(
          [&](const uint8_t* row, const Unscaled& by, float* to) HWY_ATTR {
            LoadHalves<0>(row, rows.n_elements / 2, first, n, by, to);
          });
    case DType::kQ8_0:
      return load([&](const uint8_t* row, const Unscaled&, float* to) HWY_ATTR {
        LoadBlocks<DType::kQ8_0>(
            row, first, n,
            [](const uint8_t* codes, size_t i, size_t n_now, const Unscaled& by,
               float* part) HWY_ATTR {
              LoadCodes<CodesOfI8<false>>(codes + i, n_now, by, part);
            },
            to);
      });
    case DType::kQ4_0:
      return load([&](const uint8_t* row, const Unscaled&, float* to) HWY_ATTR {
        LoadBlocks<DType::kQ4_0>(
            row, first, n,
            [](const uint8_t* codes, size_t i, size_t n_now, const Unscaled& by,
               float* part)
                HWY_ATTR { LoadHalves<8>(codes, 16, i, n_now, by, part); },
            to);
      });
    default:
      return;
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
