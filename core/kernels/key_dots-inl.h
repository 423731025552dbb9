// Dot products of a few queries with the keys of adjacent heads. Each key is read
// once, for all queries of its head.
#if defined(KVEVICT_CORE_KERNELS_KEY_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_KEY_DOTS_INL_H_
#undef KVEVICT_CORE_KERNELS_KEY_DOTS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_KEY_DOTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/kernels/attention.h"
#include "core/kernels/coded_rows-inl.h"
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Prefetches rows of adjacent heads in memory order: in the order of their use
// memory has three quarters of the speed. Rows of f32 are first prefetched to
// the second-level cache, since the first has no room for as many as are needed
// to hide the latency.
template <bool kTwice>
class RowsAhead {
 public:
  // The number of rows between prefetch and use.
  static constexpr uint32_t kAhead = kTwice ? 24 : 64;
  static constexpr uint32_t kFar = 64;

  // Rows of n_bytes, up to `end`.
  HWY_INLINE RowsAhead(const RowSource& rows, int64_t head_stride,
                       uint32_t n_heads, uint32_t first, uint32_t end,
                       uint32_t n_bytes)
      : rows_(rows),
        head_stride_(head_stride),
        n_heads_(n_heads),
        end_(end),
        n_bytes_(n_bytes),
        slot_(first + kAhead / n_heads),
        n_farther_((kFar - kAhead) / n_heads) {
    const bool are_end_to_end = rows.block_size == 0 &&
                                head_stride == n_bytes &&
                                rows.row_stride == n_heads * head_stride;
    if (kTwice || !are_end_to_end) return;
    next_ = rows.Row(slot_);
    last_ = rows.Row(end);
  }

  // Prefetches kRowsAtOnce more rows.
  HWY_INLINE void Next() {
    if (last_ == nullptr) {
      for (uint32_t r = 0; r < kRowsAtOnce; ++r) NextRow();
    } else if (next_ < last_) {
      const uint8_t* const end = next_ + kRowsAtOnce * n_bytes_;
      for (; next_ < end; next_ += 64) __builtin_prefetch(next_);
      next_ = end;
    }
  }

 private:
  HWY_INLINE void NextRow() {
    if (head_ == 0) {
      near_ = RowAt(slot_);
      if constexpr (kTwice) far_ = RowAt(slot_ + n_farther_);
    }
    Ask<3>(near_);
    if constexpr (kTwice) Ask<2>(far_);
    if (++head_ < n_heads_) return;
    head_ = 0;
    ++slot_;
  }
  HWY_INLINE const uint8_t* RowAt(uint32_t slot) const {
    return slot < end_ ? rows_.Row(slot) : nullptr;
  }
  template <int kCache>
  HWY_INLINE void Ask(const uint8_t*& row) const {
    if (row == nullptr) return;
    for (uint32_t i = 0; i < n_bytes_; i += 64) {
      __builtin_prefetch(row + i, 0, kCache);
    }
    row += head_stride_;
  }

  const RowSource& rows_;
  const int64_t head_stride_;
  const uint32_t n_heads_, end_, n_bytes_;
  uint32_t slot_, head_ = 0;
  const uint32_t n_farther_;
  const uint8_t* near_ = nullptr;
  const uint8_t* far_ = nullptr;
  // For rows that are all contiguous.
  const uint8_t* next_ = nullptr;
  const uint8_t* last_ = nullptr;
};

// Calls visit(rows, head, first, size) for the groups of rows in a tile, for
// all heads in turn. `end` is the end of the later tiles. `copies` and `memory`
// have room for some rows and for the tile's scales and minima.
template <class Rows, class Visit>
HWY_INLINE void ForEachGroup(const RowSource& source, int64_t head_stride,
                             uint32_t n_heads, SlotSpan tile, uint32_t end,
                             uint32_t dim, float* copies, float* memory,
                             const Visit& visit) {
  constexpr bool kIsF32 =
      !Rows::kIsCopy && std::is_same_v<typename Rows::Decode, DecodeF32>;
  RowsAhead<kIsF32> ahead(source, head_stride, n_heads, tile.begin, end,
                          Rows::NearBytes(source, dim));
  const auto numbers =
      Rows::NumbersOf(source, n_heads, tile.begin, tile.end, memory);
  typename Rows::Group rows;
  for (uint32_t slot = tile.begin; slot < tile.end; slot += kRowsAtOnce) {
    const uint32_t size = std::min(kRowsAtOnce, tile.end - slot);
    const auto number = [&](uint32_t r) HWY_ATTR { return slot + r; };
    Rows::Find(source, number, size, dim, copies, rows);
    for (uint32_t head = 0;;) {
      ahead.Next();
      Rows::Scale(numbers, head, slot - tile.begin, rows);
      visit(rows, head, slot - tile.begin, size);
      if (++head == n_heads) break;
      Rows::FindNext(source, number, size, dim, head, head_stride, copies,
                     rows);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR
// Dot products of a group of keys and kRows queries, which are `dim` apart. The
// logits of a query are contiguous, those of queries `stride` apart.
template <class Decode, size_t kRows, class Group>
HWY_INLINE void DotGroup(const Group& rows, const float* HWY_RESTRICT queries,
                         size_t dim, size_t stride,
                         float* HWY_RESTRICT logits) {
  for (size_t r = 0; r < kRows; ++r) {
    float dots[kRowsAtOnce];
    DotProducts<Decode>(rows, queries + r * dim, dim, dots);
    std::copy_n(dots, kRowsAtOnce, logits + r * stride);
  }
}
#else
// The sums of four vectors. Unlike in SumsOfTerms() the order depends on the
// number of lanes.
template <class V>
HWY_INLINE hn::VFromD<FourTag> SumOfEach(V a, V b, V c, V e) {
#if HWY_HAVE_SCALABLE || HWY_TARGET_IS_SVE
  const RowTag d;
  HWY_ALIGN float sums[4][kRowPad] = {};
  hn::StoreU(a, d, sums[0]);
  hn::StoreU(b, d, sums[1]);
  hn::StoreU(c, d, sums[2]);
  hn::StoreU(e, d, sums[3]);
  return AddUpFour(sums);
#else
  const hn::DFromV<V> d;
  const hn::Repartition<uint64_t, hn::DFromV<V>> pairs;
  const V ab =
      hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V ce =
      hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto x = hn::BitCast(pairs, ab), y = hn::BitCast(pairs, ce);
  return FoldToQuarter(
      hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, x, y)),
              hn::BitCast(d, hn::InterleaveUpper(pairs, x, y))));
#endif
}

template <class Decode, size_t kRows, class Group>
HWY_INLINE void DotGroup(const Group& rows, const float* HWY_RESTRICT queries,
                         size_t dim, size_t stride,
                         float* HWY_RESTRICT logits) {
  const RowTag d;
#define KV_EACH(X) X(0) X(1) X(2) X(3)
#define KV_BEGIN(r)                                                   \
  [[maybe_unused]] auto s##r##0 = hn::Zero(d), s##r##1 = hn::Zero(d), \
                        s##r##2 = hn::Zero(d), s##r##3 = hn::Zero(d);
  KV_EACH(KV_BEGIN)
#undef KV_BEGIN
  // Copies, because compilers keep in registers what no store can change.
  const auto row0 = rows[0], row1 = rows[1], row2 = rows[2], row3 = rows[3];
  for (size_t i = 0; i < dim; i += hn::Lanes(d)) {
    const auto k0 = ElementsAt<Decode>(d, row0, i);
    const auto k1 = ElementsAt<Decode>(d, row1, i);
    const auto k2 = ElementsAt<Decode>(d, row2, i);
    const auto k3 = ElementsAt<Decode>(d, row3, i);
#define KV_ADD(r)                                       \
  if constexpr (r < kRows) {                            \
    const auto q = hn::LoadU(d, queries + (r)*dim + i); \
    s##r##0 = hn::MulAdd(q, k0, s##r##0);               \
    s##r##1 = hn::MulAdd(q, k1, s##r##1);               \
    s##r##2 = hn::MulAdd(q, k2, s##r##2);               \
    s##r##3 = hn::MulAdd(q, k3, s##r##3);               \
  }
    KV_EACH(KV_ADD)
#undef KV_ADD
  }
#define KV_STORE(r)                                                      \
  if constexpr (r < kRows) {                                             \
    hn::StoreU(SumOfEach(s##r##0, s##r##1, s##r##2, s##r##3), FourTag(), \
               logits + (r)*stride);                                     \
  }
  KV_EACH(KV_STORE)
#undef KV_STORE
#undef KV_EACH
}
#endif

// The number of rows whose sums fit in registers.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr size_t kDotRows = 2;
#else
inline constexpr size_t kDotRows = 4;
#endif

// The keys of adjacent heads that are multiplied, and the queries of each.
struct KeyDots {
  const RowSource& keys;  // of the first head
  int64_t head_stride;
  uint32_t n_heads;
  uint32_t dim;
  uint32_t end;          // of the keys that are multiplied later
  const float* queries;  // [heads, n_queries, padded dim]
  uint32_t n_queries;
  float* copies;  // room for kRowsAtOnce keys
  // [2, heads, padded tile]: room for scales and minima of keys that are
  // decoded where they are multiplied; WholeRows need none.
  float* numbers;
};

// logits[head * n_queries + query][key - tile.begin], `stride` apart. Up to
// kRowsAtOnce - 1 more are written.
template <class Rows>
HWY_NOINLINE void DotKeys(const KeyDots& args, SlotSpan tile, size_t stride,
                          float* HWY_RESTRICT logits) {
  using Decode = typename Rows::Decode;
  const size_t dim = PaddedRow(args.dim);
  ForEachGroup<Rows>(
      args.keys, args.head_stride, args.n_heads, tile, args.end, args.dim,
      args.copies, args.numbers,
      [&](const auto& rows, uint32_t head, uint32_t first, uint32_t) HWY_ATTR {
        const size_t row = size_t{head} * args.n_queries;
        const float* const queries = args.queries + row * dim;
        float* const to = logits + row * stride + first;
        uint32_t r = 0;
        for (; r + kDotRows <= args.n_queries; r += kDotRows) {
          DotGroup<Decode, kDotRows>(rows, queries + r * dim, dim, stride,
                                     to + r * stride);
        }
        for (; r < args.n_queries; ++r) {
          DotGroup<Decode, 1>(rows, queries + r * dim, dim, stride,
                              to + r * stride);
        }
      });
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
