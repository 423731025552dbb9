// Quantized rows that are decoded in registers, where they are multiplied: to the same
// numbers as LoadQuantized() writes.
#if defined(KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_
#undef KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_CODED_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

struct CodedRow {
  const uint8_t* codes = nullptr;
  Unscaled by;
  size_t half = 0;                // of its elements
  const float* scales = nullptr;  // of blocks
  // Where the numbers come from.
  const uint8_t* scale = nullptr;
  const uint8_t* minimum = nullptr;
};

template <class Codes, class DF>
HWY_INLINE hn::VFromD<DF> Unscale(DF df, hn::VFromD<DF> v, const Unscaled& by) {
  const auto scale = hn::Set(df, by.scale);
  return Codes::kHasMinimum ? hn::MulAdd(v, scale, hn::Set(df, by.minimum))
                            : hn::Mul(v, scale);
}

// Nibbles of 2 * `half`, of which byte j has j in the low one and half + j in the high
// one, less kZero: from the i-th on, all in the half that it is in.
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

// Of a block of q4_0.
struct CodesOfQ4 {
  static constexpr bool kHasMinimum = false;
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const uint8_t* codes, size_t i) {
    return LoadOfHalves<8>(df, codes, i, 16);
  }
};

// Decoders, each of which loads elements [i, i + Lanes(df)) of a row.
template <class Codes>
struct DecodeCodes {
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const CodedRow& row, size_t i) {
    return Unscale<Codes>(df, Codes::Load(df, row.codes, i), row.by);
  }
};

struct DecodeHalves {
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const CodedRow& row, size_t i) {
    return Unscale<CodesU4>(df, LoadOfHalves<0>(df, row.codes, i, row.half),
                            row.by);
  }
};

template <DType kDType, class Codes>
struct DecodeBlocks {
  template <class DF>
  static HWY_INLINE hn::VFromD<DF> Load(DF df, const CodedRow& row, size_t i) {
    constexpr size_t kBlock = InfoOf(kDType).block_elements;
    const uint8_t* const block =
        row.codes + i / kBlock * InfoOf(kDType).block_bytes;
    return Unscale<Codes>(df,
                          Codes::Load(df, block + sizeof(uint16_t), i % kBlock),
                          Unscaled{row.scales[i / kBlock]});
  }
};

// Elements [i, i + Lanes(d)) of a row.
template <class Decode, class D>
HWY_INLINE hn::VFromD<D> ElementsAt(D d, const CodedRow& row, size_t i) {
  return Decode::Load(d, row, i);
}

// As WholeRows, of numbers that follow each other; blocks' scales go where copies would.
template <class Decoder, DType kBlocks = DType::kOpaque>
struct CodedRows {
  using Decode = Decoder;
  using Group = CodedRow[kRowsAtOnce];
  static constexpr bool kIsCopy = false;

  template <class Number>
  static HWY_INLINE void Find(const RowSource& rows, const Number& number,
                              uint32_t size, size_t n, float* scales,
                              Group& group) {
    if (rows.block_size == 0) {  // each one is a stride behind the last
      const uint32_t first = number(0);
      const uint8_t* codes = rows.Row(first);
      const uint8_t* scale = rows.scale.base;
      const uint8_t* minimum = rows.minimum.base;
      const auto stride = [](const RowNumbers& numbers) {
        return numbers.is_constant ? 0 : numbers.row_stride;
      };
      const int64_t scale_stride = stride(rows.scale);
      const int64_t minimum_stride = stride(rows.minimum);
      scale += first * scale_stride;
      minimum += first * minimum_stride;
      for (uint32_t r = 0; r < size; ++r) {
        group[r].codes = codes;
        group[r].half = rows.n_elements / 2;
        if (rows.scale.base != nullptr) group[r].scale = scale;
        if (rows.minimum.base != nullptr) group[r].minimum = minimum;
        codes += rows.row_stride;
        scale += scale_stride;
        minimum += minimum_stride;
      }
      return LoadNumbers(rows, size, n, scales, group);
    }
    for (uint32_t r = 0; r < size; ++r) {
      const uint32_t row = number(r);
      group[r].codes = rows.Row(row);
      group[r].half = rows.n_elements / 2;
      if (rows.scale.base != nullptr) {
        group[r].scale = rows.Number(rows.scale, row);
      }
      if (rows.minimum.base != nullptr) {
        group[r].minimum = rows.Number(rows.minimum, row);
      }
    }
    LoadNumbers(rows, size, n, scales, group);
  }

  template <class Number>
  static HWY_INLINE void FindNext(const RowSource& rows, const Number&,
                                  uint32_t size, size_t n, uint32_t,
                                  int64_t stride, float* scales, Group& group) {
    for (uint32_t r = 0; r < size; ++r) {
      group[r].codes += stride;
      group[r].scale += rows.scale.head_stride;
      group[r].minimum += rows.minimum.head_stride;
    }
    LoadNumbers(rows, size, n, scales, group);
  }

  static HWY_INLINE uint32_t NearBytes(const RowSource& rows, size_t n) {
    return static_cast<uint32_t>(
        PackedBytes(rows.dtype, static_cast<uint32_t>(n)));
  }

 private:
  static HWY_INLINE void LoadNumbers(const RowSource& rows, uint32_t size,
                                     size_t n, float* scales, Group& group) {
    for (uint32_t r = 0; r < size; ++r) {
      CodedRow& row = group[r];
      if constexpr (kBlocks == DType::kOpaque) {
        if (row.scale != nullptr) {
          row.by.scale = LoadNumber(row.scale, rows.scale.dtype);
        }
        if (row.minimum != nullptr) {
          row.by.minimum = LoadNumber(row.minimum, rows.minimum.dtype);
        }
      } else {
        constexpr DTypeInfo kInfo = InfoOf(kBlocks);
        const uint8_t* block = row.codes;
        row.scales = scales;
        for (size_t i = 0; i < n; i += kInfo.block_elements) {
          *scales++ = LoadNumber(block, DType::kF16);
          block += kInfo.block_bytes;
        }
      }
    }
    for (uint32_t r = size; r < kRowsAtOnce; ++r) group[r] = group[0];
  }
};

// Calls use() with the rows of n elements that a few others are multiplied by: decoded in
// registers where they are quantized by row and whole groups of elements lie end to end,
// else WholeRows.
template <class Use>
HWY_INLINE void WithRowsAtHand(const RowSource& rows, size_t n,
                               const Use& use) {
  const auto codes = [&](auto of) HWY_ATTR {
    use(CodedRows<DecodeCodes<decltype(of)>>());
  };
  const bool is_byte = ElementBytes(rows.dtype) == 1;
  if (rows.IsCodedByRow() && n % kRowPad == 0 &&
      (!is_byte || rows.IsPacked(1))) {
    switch (rows.dtype) {
      case DType::kE4M3:
        return codes(CodesE4M3());
      case DType::kE5M2:
        return codes(CodesE5M2());
      case DType::kU8:
        return codes(CodesU8());
      case DType::kI8:
        return codes(CodesOfI8<true>());
      case DType::kU4:
        return codes(CodesU4());
      case DType::kU4Halves:
        if (rows.n_elements / 2 % kRowPad != 0) break;
        return use(CodedRows<DecodeHalves>());
      case DType::kQ8_0:
        return use(CodedRows<DecodeBlocks<DType::kQ8_0, CodesOfI8<false>>,
                             DType::kQ8_0>());
      case DType::kQ4_0:
        return use(
            CodedRows<DecodeBlocks<DType::kQ4_0, CodesOfQ4>, DType::kQ4_0>());
      default:
        break;
    }
  }
  WithWholeRows(rows, n, use);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
