// Quantized rows that are decoded in registers, right where they are
// multiplied, to the same numbers as LoadRows() writes.
#if defined(KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_
#undef KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/dtypes/codes-inl.h"
#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

struct CodedRow {
  const uint8_t* codes;
  Unscaled by;
  size_t half;          // half of its elements
  const float* scales;  // scales of blocks
};

// Rows of a head. operator[] assembles a row when it is read.
struct CodedGroup {
  const uint8_t* codes[kRowsAtOnce];  // of the first head
  int64_t offset;                     // from there to the current head
  const float* scales;                // scale of each row
  const float* minima;
  size_t half;
  const float* block_scales;
  size_t n_blocks;  // blocks of a row

  HWY_INLINE CodedRow operator[](size_t r) const {
    return {codes[r] + offset,
            {scales[r], minima[r]},
            half,
            block_scales + r * n_blocks};
  }
};

// out[head][i] = the number (scale or minimum) of row begin + i, or `other` if
// rows have none, followed by zeros from n on. Heads are PaddedRow(n) apart.
HWY_INLINE void LoadNumbersOfRows(const RowSource& rows,
                                  const RowNumbers& numbers, float other,
                                  uint32_t n_heads, uint32_t begin, size_t n,
                                  float* HWY_RESTRICT out) {
  const size_t stride = PaddedRow(n);
  for (size_t head = 0; head < n_heads; ++head) {
    std::fill_n(out + head * stride, n, other);
    std::fill_n(out + head * stride + n, stride - n, 0.0f);
  }
  if (numbers.base == nullptr) return;
  WithDecoder(numbers.dtype, [&](auto decoder) HWY_ATTR {
    using Decode = decltype(decoder);
    const RowTag d;
    const hn::CappedTag<float, 1> one;
    constexpr size_t kBytes = sizeof(typename Decode::Bits);
    const auto rows_at = [&](size_t i) HWY_ATTR {
      return rows.Number(numbers, begin + static_cast<uint32_t>(i));
    };
    size_t i = 0;
    if (rows.block_size == 0 && numbers.row_stride == kBytes) {
      for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
        const uint8_t* from = rows_at(i);
        for (size_t head = 0; head < n_heads; ++head) {
          hn::StoreU(Decode::Load(d, from), d, out + head * stride + i);
          from += numbers.head_stride;
        }
      }
    }
    for (; i < n; ++i) {
      const uint8_t* from = rows_at(i);
      for (size_t head = 0; head < n_heads; ++head) {
        out[head * stride + i] = hn::GetLane(Decode::Load(one, from));
        from += numbers.head_stride;
      }
    }
  });
}

template <class Codes, class DF>
HWY_INLINE hn::VFromD<DF> Unscale(DF df, hn::VFromD<DF> v, const Unscaled& by) {
  const auto scale = hn::Set(df, by.scale);
  return Codes::kHasMinimum ? hn::MulAdd(v, scale, hn::Set(df, by.minimum))
                            : hn::Mul(v, scale);
}

// Codes minus kZero of 2 * `half` elements: byte j has element j in the low
// nibble and half + j in the high one. Loads from the i-th on; all are in the
// same half.
template <int32_t kZero, class DF>
HWY_INLINE hn::VFromD<DF> LoadOfHalves(DF df, const uint8_t* codes, size_t i,
                                       size_t half) {
  const hn::RebindToSigned<DF> di;
  const bool is_high = i >= half;
  const auto both = CodesU8::Widen(df, codes, is_high ? i - half : i);
  const auto one =
      hn::And(hn::ShiftRightSame(both, is_high ? 4 : 0), hn::Set(di, 15));
  return hn::ConvertTo(df, kZero == 0 ? one : hn::Sub(one, hn::Set(di, kZero)));
}

// Decoders, each of which loads elements [i, i + Lanes(df)) of a row.
template <class Codes>
struct DecodeCodes {
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const CodedRow& row, size_t i) {
    return Unscale<Codes>(df, Codes::Load(df, row.codes, i), row.by);
  }
};

template <DType kDType>
struct DecodeHalves {
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const CodedRow& row, size_t i) {
    constexpr int32_t kZero = -InfoOf(kDType).codes.lowest;
    return Unscale<CodesOfNibbles<false, kZero>>(
        df, LoadOfHalves<kZero>(df, row.codes, i, row.half), row.by);
  }
};

template <DType kDType>
struct DecodeBlocks {
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const CodedRow& row, size_t i) {
    constexpr size_t kBlock = InfoOf(kDType).block_elements;
    constexpr size_t kBytes = InfoOf(kDType).block_bytes;
    const uint8_t* const codes =
        row.codes + i / kBlock * kBytes + sizeof(uint16_t);
    const auto scale = hn::Set(df, row.scales[i / kBlock]);
    if constexpr (kBytes - sizeof(uint16_t) == kBlock) {
      return hn::Mul(DTypeCodes<kDType>::Load(df, codes, i % kBlock), scale);
    } else {
      return hn::Mul(LoadOfHalves<-InfoOf(kDType).codes.lowest>(
                         df, codes, i % kBlock, kBlock / 2),
                     scale);
    }
  }
};

// Elements [i, i + Lanes(d)) of a row.
template <class Decode, class D>
HWY_INLINE hn::VFromD<D> ElementsAt(D d, const CodedRow& row, size_t i) {
  return Decode::Load(d, row, i);
}

// Like WholeRows, for packed quantized elements. Scales of blocks are stored
// where copies would be.
template <class Decoder, DType kBlocks = DType::kOpaque>
struct CodedRows {
  using Decode = Decoder;
  using Group = CodedGroup;
  static constexpr bool kIsCopy = false;

  // Scales and minima of some rows, of all heads.
  struct Numbers {
    const float* scales;
    const float* minima;
    size_t stride;
  };
  // `memory` has 2 * PaddedRow(end - begin) floats for each head.
  static HWY_INLINE Numbers NumbersOf(const RowSource& rows, uint32_t n_heads,
                                      uint32_t begin, uint32_t end,
                                      float* memory) {
    const size_t n = end - begin, stride = PaddedRow(n);
    float* const minima = memory + n_heads * stride;
    LoadNumbersOfRows(rows, rows.scale, 1.0f, n_heads, begin, n, memory);
    LoadNumbersOfRows(rows, rows.minimum, 0.0f, n_heads, begin, n, minima);
    return {memory, minima, stride};
  }

  template <class Number>
  static HWY_INLINE void Find(const RowSource& rows, const Number& number,
                              uint32_t size, size_t n, float* scales,
                              Group& group) {
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      group.codes[r] = r < size ? rows.Row(number(r)) : group.codes[0];
    }
    group.offset = 0;
    group.half = rows.n_elements / 2;
    group.block_scales = scales;
    LoadScales(n, scales, group);
  }

  template <class Number>
  static HWY_INLINE void FindNext(const RowSource&, const Number&, uint32_t,
                                  size_t n, uint32_t head, int64_t stride,
                                  float* scales, Group& group) {
    group.offset = head * stride;
    LoadScales(n, scales, group);
  }

  // Selects the scales and minima of rows from the first-th on.
  static HWY_INLINE void Scale(const Numbers& numbers, uint32_t head,
                               uint32_t first, Group& group) {
    group.scales = numbers.scales + head * numbers.stride + first;
    group.minima = numbers.minima + head * numbers.stride + first;
  }

  static HWY_INLINE uint32_t NearBytes(const RowSource& rows, size_t n) {
    return static_cast<uint32_t>(
        PackedBytes(rows.dtype, static_cast<uint32_t>(n)));
  }

 private:
  static HWY_INLINE void LoadScales(size_t n, float* scales, Group& group) {
    if constexpr (kBlocks == DType::kOpaque) {
      group.n_blocks = 0;
    } else {
      constexpr DTypeInfo kInfo = InfoOf(kBlocks);
      // Values can be the first elements of keys, so their row may end within a
      // block.
      group.n_blocks = (n + kInfo.block_elements - 1) / kInfo.block_elements;
      for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
        const uint8_t* block = group.codes[r] + group.offset;
        for (size_t i = 0; i < group.n_blocks; ++i) {
          *scales++ = LoadNumber(block, DType::kF16);
          block += kInfo.block_bytes;
        }
      }
    }
  }
};

// Calls use() with the CodedRows of a dtype. Returns false if it has none.
template <class Use>
HWY_INLINE bool WithCodedRows(const RowSource& rows, const Use& use) {
  if constexpr (!kHasQuantized) return false;
  if (InfoOf(rows.dtype).packing == Packing::kHalves &&
      rows.n_elements / 2 % kRowPad != 0) {
    return false;
  }
  return WithQuantized(rows.dtype, [&](auto dtype) HWY_ATTR {
    constexpr DType kDType = decltype(dtype)::value;
    constexpr Packing kPacking = InfoOf(kDType).packing;
    if constexpr (kPacking == Packing::kBlocks) {
      use(CodedRows<DecodeBlocks<kDType>, kDType>());
    } else if constexpr (kPacking == Packing::kHalves) {
      use(CodedRows<DecodeHalves<kDType>>());
    } else {
      use(CodedRows<DecodeCodes<DTypeCodes<kDType>>>());
    }
  });
}

// For CPUs without AVX2 less code matters more than speed.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
inline constexpr bool kDecodesInRegisters = false;
#else
inline constexpr bool kDecodesInRegisters = true;
#endif

// Calls use() with the rows of n elements that are multiplied with a few
// others. They are decoded in registers if they are quantized by row and whole
// groups of elements are packed, else they are WholeRows.
template <class Use>
HWY_INLINE void WithRowsAtHand(const RowSource& rows, size_t n,
                               const Use& use) {
  if constexpr (kDecodesInRegisters) {
    const bool is_byte = ElementBytes(rows.dtype) == 1;
    if (rows.IsCodedByRow() && n % kRowPad == 0 &&
        (!is_byte || rows.IsPacked(1)) && WithCodedRows(rows, use)) {
      return;
    }
  }
  WithWholeRows(rows, n, use);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
