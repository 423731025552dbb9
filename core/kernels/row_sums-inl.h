// Sums over the elements of rows, in an order that depends only on their
// number.
#if defined(KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_
#undef KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_ROW_SUMS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/dtypes/load-inl.h"
#include "core/kernels/row_source.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// The sums of this many rows are finished together, with one shuffle for
// several of them.
inline constexpr uint32_t kRowsAtOnce = 4;
using RowGroup = const uint8_t* [kRowsAtOnce];

// Rows in whole groups of kRowPad elements, which Decode reads in place or,
// with DecodeCopies, from copies padded with zeros.
template <class Decoder>
struct WholeRows {
  using Decode = Decoder;
  using Group = RowGroup;
  static constexpr bool kIsCopy = std::is_same_v<Decode, DecodeCopies>;

  // CodedRows has scales and minima here; these rows have none.
  struct Numbers {};
  static Numbers NumbersOf(const RowSource&, uint32_t, uint32_t, uint32_t,
                           float*) {
    return {};
  }
  static void Scale(Numbers, uint32_t, uint32_t, RowGroup&) {}

  // Finds rows number(0) .. number(size - 1), followed by the first again.
  // `copies`: kRowsAtOnce of PaddedRow(n) floats, if kIsCopy.
  template <class Number>
  static HWY_INLINE void Find(const RowSource& rows, const Number& number,
                              uint32_t size, size_t n, float* copies,
                              RowGroup& group) {
    if constexpr (kIsCopy) {
      const size_t stride = PaddedRow(n);
      uint32_t list[kRowsAtOnce] = {};
      for (uint32_t r = 0; r < size; ++r) list[r] = number(r);
      LoadRows(rows, list, size, 0, n, stride, copies);
      for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
        group[r] = reinterpret_cast<const uint8_t*>(
            copies + (r < size ? r * stride : 0));
      }
    } else {
      for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
        group[r] = r < size ? rows.Row(number(r)) : group[0];
      }
    }
  }

  // Advances to the same rows of the next head, the head-th after that of
  // `rows`.
  template <class Number>
  static HWY_INLINE void FindNext(const RowSource& rows, const Number& number,
                                  uint32_t size, size_t n, uint32_t head,
                                  int64_t stride, float* copies,
                                  RowGroup& group) {
    if constexpr (kIsCopy) {
      RowSource of_head = rows;
      of_head.NextHead(head, stride);
      Find(of_head, number, size, n, copies, group);
    } else {
      // Not computed from the last pointers, since their loads would wait for
      // those stores.
      for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
        group[r] = r < size ? rows.Row(number(r)) + head * stride : group[0];
      }
    }
  }

  // Advances to the n-th next head.
  static HWY_INLINE void NextHead(RowSource& rows, int64_t n, int64_t stride) {
    if constexpr (kIsCopy) {
      rows.NextHead(n, stride);
    } else {
      rows.base += n * stride;
    }
  }

  // Bytes of a row of n elements if they are contiguous, else 0.
  static HWY_INLINE uint32_t NearBytes(const RowSource& rows, size_t n) {
    const auto elements = static_cast<uint32_t>(n);
    if constexpr (!kIsCopy) return elements * sizeof(typename Decode::Bits);
    if (ElementBytes(rows.dtype) == 0) {
      return static_cast<uint32_t>(PackedBytes(rows.dtype, elements));
    }
    const int64_t stride = rows.group_elems == 0 ? rows.element_stride : 0;
    return stride > 0 && stride <= 8 ? elements * static_cast<uint32_t>(stride)
                                     : 0;
  }
};

// Calls use() with the WholeRows for rows of n elements.
template <class Use>
HWY_INLINE void WithWholeRows(const RowSource& rows, size_t n, const Use& use) {
  WithDecoderOrCopies(rows, n, [&](auto decoder) HWY_ATTR {
    use(WholeRows<decltype(decoder)>());
  });
}

// How many rows ahead rows are prefetched. Hardware prefetchers do not see that
// rows of a head continue after those of others.
inline constexpr uint32_t kRowsAhead = 48;

// Prefetches rows [first, end) of n_bytes, or those of a list.
HWY_INLINE void AskForRows(const RowSource& source, uint32_t first,
                           uint32_t end, size_t n_bytes,
                           const uint32_t* list = nullptr) {
  for (uint32_t r = first; r < end; ++r) {
    const uint8_t* const row = source.Row(list == nullptr ? r : list[r]);
    for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(row + i);
  }
}

// Iterates over WholeRows [begin, end) of n elements, or those of a list, one
// group after the other: while (groups.Next()). With several adjacent heads
// each has a group in turn.
template <class Rows>
class RowGroups {
 public:
  // `copies`: kRowsAtOnce rows of PaddedRow(n) floats, if Rows makes copies.
  HWY_INLINE RowGroups(const RowSource& source, uint32_t begin, uint32_t end,
                       size_t n, float* copies, const uint32_t* list = nullptr,
                       const SideBySide& heads = SideBySide())
      : source_(source),
        heads_(heads),
        n_ahead_(std::max(kRowsAtOnce, kRowsAhead / heads.n_heads)),
        head_(heads.n_heads - 1),
        first_(begin),
        end_(end),
        n_(n),
        n_bytes_(Rows::NearBytes(source, n)),
        copies_(copies),
        list_(list) {
    Rows::NextHead(source_, head_, heads.stride);
  }

  HWY_INLINE bool Next() {
    Rows::NextHead(source_, 1, heads_.stride);
    if (++head_ == heads_.n_heads) {
      Rows::NextHead(source_, -int64_t{head_}, heads_.stride);
      head_ = 0;
      first_ += size_;
      if (first_ >= end_) return false;
    }
    // Prefetches a few lines at a time, since many at once wait for each other.
    if (!Rows::kIsCopy || n_bytes_ != 0) {
      AskForRows(source_, std::min(end_, first_ + n_ahead_),
                 std::min(end_, first_ + n_ahead_ + kRowsAtOnce), n_bytes_,
                 list_);
    }
    size_ = std::min(kRowsAtOnce, end_ - first_);
    Rows::Find(
        source_, [&](uint32_t r) HWY_ATTR { return row(r); }, size_, n_,
        copies_, rows);
    return true;
  }

  // Rows [first(), first() + size()) of a head. If the group is not full it is
  // filled with its first row.
  RowGroup rows;
  uint32_t head() const { return head_; }
  uint32_t first() const { return first_; }
  uint32_t size() const { return size_; }
  HWY_INLINE uint32_t row(uint32_t r) const {
    return list_ == nullptr ? first_ + r : list_[first_ + r];
  }

 private:
  RowSource source_;
  const SideBySide heads_;
  const uint32_t n_ahead_;
  uint32_t head_, first_, size_ = 0;
  const uint32_t end_;
  const size_t n_;
  const uint32_t n_bytes_;
  float* const copies_;
  const uint32_t* const list_;
};

// Elements [i, i + Lanes(d)) of a whole row.
template <class Decode, class D>
HWY_INLINE hn::VFromD<D> ElementsAt(D d, const uint8_t* row, size_t i) {
  return Decode::Load(d, row + i * sizeof(typename Decode::Bits));
}

// out[r] = the sum of row r's n terms, a multiple of kRowPad. add(r, i, sum)
// returns sum + the terms from i on. The terms j, j + kRowPad, ... are added to
// sum j of kRowPad, and AddUp() adds these.
#if HWY_TARGET == HWY_SCALAR
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
#elif HWY_HAVE_SCALABLE || HWY_TARGET_IS_SVE
// Vectors of these targets cannot be class members. They have 4, 8 or 16 lanes,
// which is known at compile time only on the last targets.
template <class Add>
HWY_INLINE void SumsOfTerms(size_t n, const Add& add,
                            float (&out)[kRowsAtOnce]) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float sums[kRowsAtOnce][kRowPad];
  for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
    auto a = hn::Zero(d), b = a, c = a, e = a;
    for (size_t i = 0; i < n; i += kRowPad) {
      a = add(r, i, a);
      if (lanes < kRowPad) b = add(r, i + lanes, b);
      if (lanes < kRowPad / 2) {
        c = add(r, i + 2 * lanes, c);
        e = add(r, i + 3 * lanes, e);
      }
    }
    hn::StoreU(a, d, sums[r]);
    if (lanes < kRowPad) hn::StoreU(b, d, sums[r] + lanes);
    if (lanes < kRowPad / 2) {
      hn::StoreU(c, d, sums[r] + 2 * lanes);
      hn::StoreU(e, d, sums[r] + 3 * lanes);
    }
  }
  hn::StoreU(AddUpFour(sums), FourTag(), out);
}
#else
using Quarter = hn::VFromD<FourTag>;
static_assert(kRowPad / 4 == 4);

HWY_INLINE Quarter FoldToQuarter(Quarter v) { return v; }
template <class V>
HWY_INLINE Quarter FoldToQuarter(V v) {
  const hn::Half<hn::DFromV<V>> half;
  return FoldToQuarter(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
}

// The sums of one row, as named members, since compilers leave arrays of
// vectors in memory.
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
  // Unrolled steps leave room for more loads in flight.
  template <class Add>
  HWY_INLINE void TakeRow(const Add& add, uint32_t r, size_t n) {
    constexpr size_t kSteps = 8;
    size_t i = 0;
    for (; i + kSteps * kRowPad <= n; i += kSteps * kRowPad) {
      Take(add, r, i);
      Take(add, r, i + kRowPad);
      Take(add, r, i + 2 * kRowPad);
      Take(add, r, i + 3 * kRowPad);
      Take(add, r, i + 4 * kRowPad);
      Take(add, r, i + 5 * kRowPad);
      Take(add, r, i + 6 * kRowPad);
      Take(add, r, i + 7 * kRowPad);
    }
    for (; i < n; i += kRowPad) Take(add, r, i);
  }
  // The last four sums.
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
  // Row after row, which suits prefetchers: with four rows in step, f32 keys
  // came at half the speed from memory.
  RowSums<RowTag> s0, s1, s2, s3;
  s0.TakeRow(add, 0, n);
  s1.TakeRow(add, 1, n);
  s2.TakeRow(add, 2, n);
  s3.TakeRow(add, 3, n);
  const FourTag d;
  const Quarter v0 = s0.Fold(), v1 = s1.Fold(), v2 = s2.Fold(), v3 = s3.Fold();
  const Quarter low =
      hn::Add(hn::ConcatLowerLower(d, v1, v0), hn::ConcatUpperUpper(d, v1, v0));
  const Quarter high =
      hn::Add(hn::ConcatLowerLower(d, v3, v2), hn::ConcatUpperUpper(d, v3, v2));
  hn::StoreU(hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)),
             d, out);
}
#endif

// The sums of squares of whole rows.
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
template <class Decode, class Group>
HWY_INLINE void DotProducts(const Group& rows, const float* with, size_t n,
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
