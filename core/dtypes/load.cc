#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Kernels that multiply bytes also load rows, so this file needs their targets.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/dtypes/load.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// These must follow foreach_target.h, which includes this file once per target.
#include "core/dtype.h"
#include "core/dtypes/codes-inl.h"
#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// ---- Quantized rows ----

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
  // The rest goes through a copy, so that nothing past the end is read.
  uint8_t rest[kRowPad] = {};
  float loaded[kRowPad];
  std::memcpy(rest, codes + i / Codes::kPerByte,
              (n - i + Codes::kPerByte - 1) / Codes::kPerByte);
  hn::StoreU(load(rest, 0), df, loaded);
  std::copy_n(loaded, n - i, out + i);
}

// Elements [first, first + n) of a row of one byte each, at any stride.
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

// Elements [first, first + n) of 2 * `half`: byte j has element j in the low
// nibble and element half + j in the high one.
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

// Elements [first, first + n) of blocks, each an f16 scale and codes: a byte each,
// or halves.
template <DType kDType>
HWY_INLINE void LoadBlocks(const uint8_t* row, size_t first, size_t n,
                           float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 1> one;
  constexpr size_t kBlock = InfoOf(kDType).block_elements;
  constexpr size_t kBytes = InfoOf(kDType).block_bytes;
  const auto load = [](const uint8_t* codes, size_t i, size_t n_now,
                       const Unscaled& by, float* part) HWY_ATTR {
    if constexpr (kBytes - sizeof(uint16_t) == kBlock) {
      LoadCodes<DTypeCodes<kDType>>(codes + i, n_now, by, part);
    } else {
      LoadHalves<-InfoOf(kDType).codes.lowest>(codes, kBlock / 2, i, n_now, by,
                                               part);
    }
  };
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

// Elements [first, first + n) of a row of a quantized dtype.
template <DType kDType>
HWY_INLINE void LoadElements(const RowSource& rows, const uint8_t* row,
                             size_t first, size_t n, const Unscaled& by,
                             float* HWY_RESTRICT out) {
  constexpr DTypeInfo kInfo = InfoOf(kDType);
  constexpr int32_t kZero = -kInfo.codes.lowest;
  if constexpr (kInfo.packing == Packing::kBlocks) {
    LoadBlocks<kDType>(row, first, n, out);
  } else if constexpr (kInfo.packing == Packing::kHalves) {
    LoadHalves<kZero>(row, rows.n_elements / 2, first, n, by, out);
  } else if constexpr (kInfo.packing == Packing::kPairs) {
    const size_t n_odd = std::min(n, first % 2);
    LoadCodes<CodesOfNibbles<false, kZero>>(row + first / 2, n_odd, by, out);
    LoadCodes<DTypeCodes<kDType>>(row + (first + n_odd) / 2, n - n_odd, by,
                                  out + n_odd);
  } else {
    LoadBytewise<DTypeCodes<kDType>>(rows, row, first, n, by, out);
  }
}

// The scale and minimum of a row; neutral ones if elements have their own.
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

// Elements [i, i + lanes) of n packed floating-point numbers, followed by
// zeros.
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

// Scales out[0, n) in place: the codes of elements from `first` on of row r.
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

// LoadRows() for quantized rows.
[[maybe_unused]] void LoadQuantized(const RowSource& rows, const uint32_t* list,
                                    uint32_t n_rows, size_t first, size_t n,
                                    size_t stride, float* HWY_RESTRICT out) {
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
  WithQuantized(rows.dtype, [&](auto dtype) HWY_ATTR {
    load([&](const uint8_t* row, const Unscaled& by, float* to) HWY_ATTR {
      LoadElements<decltype(dtype)::value>(rows, row, first, n, by, to);
    });
  });
}

// ---- Floating-point rows ----

template <class Decode>
HWY_INLINE void LoadPlain(const RowSource& rows, uint32_t r, size_t first,
                          size_t n, float* HWY_RESTRICT out) {
  using Bits = typename Decode::Bits;
  const uint8_t* const row = rows.Row(r);
  const RowTag df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  if (rows.IsPacked(sizeof(Bits))) {
    const uint8_t* const from = row + first * sizeof(Bits);
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(Decode::Load(df, from + i * sizeof(Bits)), df, out + i);
    }
  }
  // The end of the row, and elements that are not adjacent, go through a packed
  // copy, so that nothing past the row is read.
  for (; i < PaddedRow(n); i += lanes) {
    Bits packed[kRowPad] = {};
    if (i < n) {
      CopyElements(rows, row, first + i, HWY_MIN(lanes, n - i), packed);
    }
    hn::StoreU(Decode::Load(df, reinterpret_cast<const uint8_t*>(packed)), df,
               out + i);
  }
}

}  // namespace

void LoadRows(const RowSource& rows, const uint32_t* list, uint32_t n_rows,
              size_t first, size_t n, size_t stride, float* HWY_RESTRICT out) {
  if (WithDecoder(rows.dtype, [&](auto decoder) HWY_ATTR {
        for (uint32_t i = 0; i < n_rows; ++i) {
          LoadPlain<decltype(decoder)>(rows, list[i], first, n,
                                       out + i * stride);
        }
      })) {
    return;
  }
  if constexpr (kHasQuantized) {
    LoadQuantized(rows, list, n_rows, first, n, stride, out);
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
