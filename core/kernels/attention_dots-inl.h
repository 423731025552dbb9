// Attention with few rows per head: each key and value is read once, for all
// rows.
#if defined(KVEVICT_CORE_KERNELS_ATTENTION_DOTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_ATTENTION_DOTS_INL_H_
#undef KVEVICT_CORE_KERNELS_ATTENTION_DOTS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_ATTENTION_DOTS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/kernels/attention.h"
#include "core/kernels/attention_parts.h"
#include "core/kernels/attention_softmax-inl.h"
#include "core/kernels/coded_rows-inl.h"
#include "core/kernels/key_dots-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "core/kernels/row_sums-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

HWY_INLINE void ScaleQueries(const Attention& args,
                             const AttentionParts& parts) {
  const uint32_t n_rows = args.rows_per_head();
  const size_t dim = PaddedRow(args.k_dim);
  for (uint32_t row = 0; row < args.n_rows(); ++row) {
    float* const query = parts.queries + row * dim;
    LoadQuery(args, row / n_rows, row % n_rows, query);
    ScaleRow(QueryScale(args.scale, args.softcap), dim, query);
  }
}

// Logits of all rows.
template <class Rows>
HWY_INLINE void DotKeys(const Attention& args, SlotSpan tile, uint32_t end,
                        const AttentionParts& parts) {
  DotKeys<Rows>(
      {args.keys, args.key_head_stride, args.n_heads, args.k_dim, end,
       parts.queries, args.rows_per_head(), parts.keys, parts.numbers},
      tile, kAttentionTile, parts.logits);
}

// Caps the logits of all rows, and adds the biases of a tile.
inline HWY_NOINLINE void AddBiases(const Attention& args, SlotSpan tile,
                                   const AttentionParts& parts) {
  const RowTag d;
  const auto cap = hn::Set(d, args.softcap * kLog2OfE);
  HWY_ALIGN float biases[kAttentionTile];
  for (uint32_t row = 0; row < args.n_rows(); ++row) {
    if (row % args.rows_per_head() == 0) {
      RowSource rows = args.biases;
      rows.base += row / args.rows_per_head() * args.bias_head_stride;
      LoadBiases(rows, tile, kAttentionTile, biases);
    }
    float* const logits = parts.logits + size_t{row} * kAttentionTile;
    for (size_t j = 0; j < kAttentionTile; j += hn::Lanes(d)) {
      auto x = hn::LoadU(d, logits + j);
      if (args.softcap != 0.0f) x = Cap(d, cap, x);
      hn::StoreU(hn::Add(x, hn::LoadU(d, biases + j)), d, logits + j);
    }
  }
}

// The weights of a row from its logits, relative to its reference; 0 for slots
// that it does not see.
HWY_INLINE void WeighLogits(const Attention& args, float softcap, SlotSpan seen,
                            float* logits, float* reference, float* sum,
                            float* out) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  if (softcap != 0.0f) {
    const auto cap = hn::Set(d, softcap * kLog2OfE);
    for (size_t j = 0; j < kAttentionTile; j += lanes) {
      hn::StoreU(Cap(d, cap, hn::LoadU(d, logits + j)), d, logits + j);
    }
  }
  std::fill_n(logits, seen.begin, kNothing);
  std::fill(logits + seen.end, logits + kAttentionTile, kNothing);
  auto highest = hn::Set(d, kNothing);
  for (size_t j = 0; j < kAttentionTile; j += lanes) {
    highest = hn::Max(highest, hn::LoadU(d, logits + j));
  }
  const float most = hn::ReduceMax(d, highest);
  if (HWY_UNLIKELY(most > *reference + kRaise)) {
    if (*reference != kNothing) {
      const float factor = std::exp2(*reference - most);
      *sum *= factor;
      ScaleRow(factor, PaddedRow(args.v_dim), out);
    }
    *reference = most;
  }
  const auto base = BaseOf(d, hn::Set(d, *reference));
  auto total = hn::Zero(d);
  for (size_t j = 0; j < kAttentionTile; j += lanes) {
    const auto e = Exp2(d, hn::Sub(hn::LoadU(d, logits + j), base));
    total = hn::Add(total, e);
    hn::StoreU(e, d, logits + j);
  }
  *sum += hn::ReduceSum(d, total);
}

// Adds a group of weighted values to kRows rows that are `stride` apart.
template <class Decode, size_t kRows, class Group>
HWY_INLINE void AddGroup(const Group& rows, const float* HWY_RESTRICT weights,
                         size_t dim, size_t stride, float* HWY_RESTRICT out) {
  const RowTag d;
#define KV_WEIGHTS(r)                                                        \
  [[maybe_unused]] const float* const w##r = weights + (r)*kAttentionTile;   \
  [[maybe_unused]] const auto w##r##0 = hn::Set(d, r < kRows ? w##r[0] : 0); \
  [[maybe_unused]] const auto w##r##1 = hn::Set(d, r < kRows ? w##r[1] : 0); \
  [[maybe_unused]] const auto w##r##2 = hn::Set(d, r < kRows ? w##r[2] : 0); \
  [[maybe_unused]] const auto w##r##3 = hn::Set(d, r < kRows ? w##r[3] : 0);
  KV_WEIGHTS(0)
  KV_WEIGHTS(1)
  KV_WEIGHTS(2)
  KV_WEIGHTS(3)
#undef KV_WEIGHTS
  const auto row0 = rows[0], row1 = rows[1], row2 = rows[2], row3 = rows[3];
  for (size_t i = 0; i < dim; i += hn::Lanes(d)) {
    const auto v0 = ElementsAt<Decode>(d, row0, i);
    const auto v1 = ElementsAt<Decode>(d, row1, i);
    const auto v2 = ElementsAt<Decode>(d, row2, i);
    const auto v3 = ElementsAt<Decode>(d, row3, i);
#define KV_ADD(r)                                         \
  if constexpr (r < kRows) {                              \
    float* const to = out + (r)*stride + i;               \
    auto sum = hn::MulAdd(w##r##0, v0, hn::LoadU(d, to)); \
    sum = hn::MulAdd(w##r##1, v1, sum);                   \
    sum = hn::MulAdd(w##r##2, v2, sum);                   \
    hn::StoreU(hn::MulAdd(w##r##3, v3, sum), d, to);      \
  }
    KV_ADD(0) KV_ADD(1) KV_ADD(2) KV_ADD(3)
#undef KV_ADD
  }
}

// The same for all rows of a head, if each sees the whole group.
template <class Decode, class Group>
HWY_INLINE void AddGroupToAll(const Group& rows, const float* weights,
                              uint32_t n_rows, size_t dim, size_t stride,
                              float* out) {
  uint32_t r = 0;
  const auto at = [&](uint32_t row) { return out + row * stride; };
  for (; r + 4 <= n_rows; r += 4) {
    AddGroup<Decode, 4>(rows, weights + r * kAttentionTile, dim, stride, at(r));
  }
  if (r + 2 <= n_rows) {
    AddGroup<Decode, 2>(rows, weights + r * kAttentionTile, dim, stride, at(r));
    r += 2;
  }
  if (r < n_rows) {
    AddGroup<Decode, 1>(rows, weights + r * kAttentionTile, dim, stride, at(r));
  }
}

// Adds the values of a group that a row sees, in the same order.
template <class Decode, class Group>
HWY_INLINE void AddSeen(const Group& rows, SlotSpan seen, uint32_t first,
                        uint32_t size, const float* weights, size_t dim,
                        float* out) {
  const RowTag d;
  for (uint32_t j = 0; j < size; ++j) {
    if (first + j < seen.begin || first + j >= seen.end) continue;
    const auto weight = hn::Set(d, weights[j]);
    const auto row = rows[j];
    for (size_t i = 0; i < dim; i += hn::Lanes(d)) {
      const auto v = ElementsAt<Decode>(d, row, i);
      hn::StoreU(hn::MulAdd(weight, v, hn::LoadU(d, out + i)), d, out + i);
    }
  }
}

template <class Rows>
HWY_INLINE void AddValues(const Attention& args, SlotSpan tile, uint32_t end,
                          const AttentionParts& parts, float* out) {
  using Decode = typename Rows::Decode;
  const size_t dim = PaddedRow(args.v_dim);
  const size_t stride = AttentionState::OutStride(args.v_dim);
  const uint32_t n_rows = args.rows_per_head();
  const bool all_see = AllSee(args, tile.begin, tile.size());
  ForEachGroup<Rows>(
      args.values, args.value_head_stride, args.n_heads, tile, end, args.v_dim,
      parts.values, parts.numbers,
      [&](const auto& rows, uint32_t head, uint32_t first,
          uint32_t size) HWY_ATTR {
        const size_t row = size_t{head} * n_rows;
        const float* const weights =
            parts.logits + row * kAttentionTile + first;
        if (all_see) {
          AddGroupToAll<Decode>(rows, weights, n_rows, dim, stride,
                                out + row * stride);
          return;
        }
        for (uint32_t r = 0; r < n_rows; ++r) {
          const SlotSpan seen =
              SeenInTile(args, r / args.group, tile.begin, tile.size());
          AddSeen<Decode>(rows, seen, first, size, weights + r * kAttentionTile,
                          dim, out + (row + r) * stride);
        }
      });
}

HWY_INLINE void AttendByDots(const Attention& args, SlotSpan span,
                             const AttentionState& state,
                             const AttentionParts& parts) {
  const uint32_t n_rows = args.rows_per_head();
  const size_t out_stride = AttentionState::OutStride(args.v_dim);
  const float softcap = args.softcap_of_biased();
  ScaleQueries(args, parts);
  for (uint32_t slot = span.begin; slot < span.end; slot += kAttentionTile) {
    const SlotSpan tile = {slot, std::min(span.end, slot + kAttentionTile)};
    WithRowsAtHand(args.keys, args.k_dim, [&](auto rows) HWY_ATTR {
      DotKeys<decltype(rows)>(args, tile, span.end, parts);
    });
    if (args.has_biases()) AddBiases(args, tile, parts);
    for (uint32_t row = 0; row < args.n_rows(); ++row) {
      WeighLogits(
          args, softcap,
          SeenInTile(args, row % n_rows / args.group, slot, tile.size()),
          parts.logits + size_t{row} * kAttentionTile, state.reference + row,
          state.sum + row, state.out + row * out_stride);
    }
    WithRowsAtHand(args.values, args.v_dim, [&](auto rows) HWY_ATTR {
      AddValues<decltype(rows)>(args, tile, span.end, parts, state.out);
    });
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
