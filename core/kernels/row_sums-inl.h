// Sums over the elements of rows, in an order that depends on their number alone.
#if defined(KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_
#undef KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Rows in whole groups of kRowPad elements, which Decode reads: where they lie or, if
// elements lie apart or leave the last group open, in a copy that ends in zeros.
template <class Stored, bool kCopies>
struct WholeRows {
  using Decode = std::conditional_t<kCopies, DecodeF32, Stored>;

  // `copy`: PaddedRow(n) floats.
  static HWY_INLINE const uint8_t* Find(const RowSource& rows, uint32_t row,
                                        size_t n, float* copy) {
    const uint8_t* const from = rows.Row(row);
    if constexpr (!kCopies) return from;
    LoadRowOf<Stored>(from, rows.element_stride, n, copy);
    return reinterpret_cast<const uint8_t*>(copy);
  }
};

// Calls use() with the WholeRows for rows of n elements.
template <class Use>
HWY_INLINE void WithWholeRows(const RowSource& rows, size_t n, const Use& use) {
  WithDecoder(rows.dtype, [&](auto decoder) HWY_ATTR {
    using Stored = decltype(decoder);
    if (n % kRowPad == 0 &&
        rows.element_stride == int64_t{sizeof(typename Stored::Bits)}) {
      use(WholeRows<Stored, false>());
    } else {
      use(WholeRows<Stored, true>());
    }
  });
}

// Elements [i, i + Lanes(d)) of a whole row.
template <class Decode, class D>
HWY_INLINE hn::VFromD<D> ElementsAt(D d, const uint8_t* row, size_t i) {
  return Decode::Load(d, row + i * sizeof(typename Decode::Bits));
}

// Sums of as many rows are finished together, with one shuffle for several of them.
inline constexpr uint32_t kRowsAtOnce = 4;
using RowGroup = const uint8_t* [kRowsAtOnce];

// out[r] = the sum of row r's n terms, a multiple of kRowPad; add(r, i, sum) returns
// sum + the terms from i on. The terms j, j + kRowPad, ... make sum j of kRowPad, and
// AddUp() one of them.
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
template <class Add>
HWY_INLINE void SumsOfTerms(size_t n, const Add& add,
                            float (&out)[kRowsAtOnce]) {
  const RowTag d;
  for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
    float sums[kRowPad] = {};
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      float* const sum = sums + i % kRowPad;
      hn::StoreU(add(r, i, hn::LoadU(d, sum)), d, sum);
    }
    out[r] = AddUp(sums);
  }
}
#else
using QuarterTag = hn::FixedTag<float, kRowPad / 4>;
using Quarter = hn::VFromD<QuarterTag>;

HWY_INLINE Quarter FoldToQuarter(Quarter v) { return v; }
template <class V>
HWY_INLINE Quarter FoldToQuarter(V v) {
  const hn::Half<hn::DFromV<V>> half;
  return FoldToQuarter(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
}

// The sums of one row. By name, since compilers leave arrays of vectors in memory.
template <class D>
class RowSums {
 public:
  HWY_INLINE RowSums() : a_(hn::Zero(D())), b_(a_), c_(a_), e_(a_) {}

  template <class Add>
  HWY_INLINE void Take(const Add& add, uint32_t r, size_t i) {
    a_ = add(r, i, a_);
    if constexpr (kLanes < kRowPad) b_ = add(r, i + kLanes, b_);
    if constexpr (kLanes < kRowPad / 2) {
      c_ = add(r, i + 2 * kLanes, c_);
      e_ = add(r, i + 3 * kLanes, e_);
    }
  }
  // The last four.
  HWY_INLINE Quarter Fold() const {
    if constexpr (kLanes == kRowPad) return FoldToQuarter(a_);
    if constexpr (kLanes == kRowPad / 2) return FoldToQuarter(hn::Add(a_, b_));
    if constexpr (kLanes == kRowPad / 4) {
      return hn::Add(hn::Add(a_, c_), hn::Add(b_, e_));
    }
  }

 private:
  static constexpr size_t kLanes = hn::MaxLanes(D());
  hn::VFromD<D> a_, b_, c_, e_;
};

template <class Add>
HWY_INLINE void SumsOfTerms(size_t n, const Add& add,
                            float (&out)[kRowsAtOnce]) {
  // Row after row, as prefetchers like it: in step, four rows at a time, f32 keys came
  // at half the speed from memory.
  RowSums<RowTag> s0, s1, s2, s3;
  for (size_t i = 0; i < n; i += kRowPad) s0.Take(add, 0, i);
  for (size_t i = 0; i < n; i += kRowPad) s1.Take(add, 1, i);
  for (size_t i = 0; i < n; i += kRowPad) s2.Take(add, 2, i);
  for (size_t i = 0; i < n; i += kRowPad) s3.Take(add, 3, i);
  const QuarterTag d;
  const Quarter v0 = s0.Fold(), v1 = s1.Fold(), v2 = s2.Fold(), v3 = s3.Fold();
  const Quarter low =
      hn::Add(hn::ConcatLowerLower(d, v1, v0), hn::ConcatUpperUpper(d, v1, v0));
  const Quarter high =
      hn::Add(hn::ConcatLowerLower(d, v3, v2), hn::ConcatUpperUpper(d, v3, v2));
  hn::StoreU(hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)),
             d, out);
}
#endif

// The sums of whole rows' squares.
template <class Decode>
HWY_INLINE void SumsOfSquares(const RowGroup& rows, size_t n,
                              float (&out)[kRowsAtOnce]) {
  const RowTag d;
  SumsOfTerms(
      n,
      [&](uint32_t r, size_t i, auto sum) HWY_ATTR {
        const auto v = ElementsAt<Decode>(d, rows[r], i);
        return hn::MulAdd(v, v, sum);
      },
      out);
}

// The dot products of whole rows with n floats.
template <class Decode>
HWY_INLINE void DotProducts(const RowGroup& rows, const float* with, size_t n,
                            float (&out)[kRowsAtOnce]) {
  const RowTag d;
  SumsOfTerms(
      n,
      [&](uint32_t r, size_t i, auto sum) HWY_ATTR {
        return hn::MulAdd(ElementsAt<Decode>(d, rows[r], i),
                          hn::LoadU(d, with + i), sum);
      },
      out);
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
