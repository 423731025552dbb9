#include "core/kernels/attention_weights.h"

#include <algorithm>
#include <cstring>

#include "core/kernels/attention_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention_weights.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/attention_dots-inl.h"
#include "core/kernels/attention_products-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// The log-sum-exp of row r, in base 2.
HWY_INLINE float LseOf(const AttentionWeights& args, uint32_t r) {
  const Attention& rows = args.rows;
  float lse;
  std::memcpy(&lse,
              args.lse.data + r % rows.group * args.lse.head_stride +
                  (rows.first_query + r / rows.group) * args.lse.row_stride,
              sizeof(lse));
  return lse * kLog2OfE;
}

// Adds a row's weights of a tile.
HWY_INLINE void AddRowWeights(float softcap, SlotSpan seen, float lse,
                              const float* HWY_RESTRICT logits,
                              float* HWY_RESTRICT sums) {
  const RowTag d;
  const bool is_capped = softcap != 0.0f;
  const auto cap = hn::Set(d, softcap * kLog2OfE);
  const auto base = hn::Set(d, lse);
  for (size_t j = seen.begin; j < seen.end; j += hn::Lanes(d)) {
    const size_t n = std::min<size_t>(hn::Lanes(d), seen.end - j);
    auto x = hn::LoadN(d, logits + j, n);
    if (is_capped) x = Cap(d, cap, x);
    const auto weight = Exp2(d, hn::Sub(x, base));
    hn::StoreN(hn::Add(hn::LoadN(d, sums + j, n), weight), d, sums + j, n);
  }
}

HWY_INLINE void AddByDots(const AttentionWeights& args,
                          const AttentionParts& parts) {
  const Attention& rows = args.rows;
  const float softcap = rows.softcap_of_biased();
  ScaleQueries(rows, parts);
  for (uint32_t slot = args.span.begin; slot < args.span.end;
       slot += kAttentionTile) {
    const SlotSpan tile = {slot,
                           std::min(args.span.end, slot + kAttentionTile)};
    WithWholeRows(rows.keys, rows.k_dim, [&](auto whole) HWY_ATTR {
      DotKeys<decltype(whole)>(rows, tile, args.span.end, parts);
    });
    if (rows.has_biases()) AddBiases(rows, tile, parts);
    for (uint32_t r = 0; r < rows.n_rows(); ++r) {
      const float lse = LseOf(args, r);
      if (lse == kNothing) continue;
      AddRowWeights(softcap,
                    SeenInTile(rows, r / rows.group, slot, tile.size()), lse,
                    parts.logits + r * kAttentionTile,
                    args.sums + r % rows.group * args.head_stride + slot -
                        args.span.begin);
    }
  }
}

// Adds the weights of a vector of rows for a tile.
HWY_INLINE void AddPanelWeights(const Attention& args, size_t row,
                                size_t n_slots, const AttentionParts& parts,
                                float* HWY_RESTRICT sums) {
  const RowTag d;
  const float softcap = args.softcap_of_biased();
  const bool is_capped = softcap != 0.0f;
  const auto cap = hn::Set(d, softcap * kLog2OfE);
  const auto begin = hn::LoadU(d, parts.begins + row);
  const auto end = hn::LoadU(d, parts.ends + row);
  const auto lse = hn::LoadU(d, parts.factors + row);
  const auto none = hn::Eq(lse, hn::Set(d, kNothing));
  for (size_t t = 0; t < n_slots; ++t) {
    const auto x =
        Seen<true>(d, cap, is_capped,
                   hn::LoadU(d, parts.logits + t * parts.logit_stride + row), t,
                   begin, end);
    const auto slot = hn::Set(d, static_cast<float>(t));
    const auto seen = hn::And(hn::Ge(slot, begin), hn::Lt(slot, end));
    const auto weight = hn::IfThenZeroElse(none, Exp2(d, hn::Sub(x, lse)));
    sums[t] += hn::ReduceSum(d, hn::IfThenElseZero(seen, weight));
  }
}

HWY_INLINE void AddByProducts(const AttentionWeights& args,
                              const AttentionParts& parts) {
  const Attention& rows = args.rows;
  const auto width = static_cast<uint32_t>(KeysPerPanel());
  PackRows(rows, parts);
  for (uint32_t r = 0; r < InPanels(rows.n_rows()); ++r) {
    parts.factors[r] = r < rows.n_rows() ? LseOf(args, r) : 0.0f;
  }
  for (uint32_t slot = args.span.begin; slot < args.span.end;
       slot += kAttentionTile) {
    const SlotSpan tile = {slot,
                           std::min(args.span.end, slot + kAttentionTile)};
    LoadTile(rows.keys, tile, args.span.end, rows.k_dim, parts.key_stride,
             parts.keys);
    for (uint32_t row = 0; row < rows.n_rows(); row += width) {
      if (!FindSeen(rows, row, tile, parts)) continue;
      MultiplyKeys(rows, row, tile.size(), parts);
      if (rows.has_biases()) AddBiases(rows, row, tile, parts);
      for (uint32_t r = row; r < row + width; r += hn::Lanes(RowTag())) {
        AddPanelWeights(rows, r, tile.size(), parts,
                        args.sums + slot - args.span.begin);
      }
    }
  }
}

// Matrix products work on the rows of all query heads at once. If the heads'
// sums are separate, heads are processed one after the other.
void AddWeights(const AttentionWeights& all) {
  AttentionWeights args = all;
  const SlotSpan seen = args.rows.Seen();
  args.span.begin =
      std::max(args.span.begin, seen.begin / kAttentionTile * kAttentionTile);
  args.span.end = std::min(args.span.end, seen.end);
  if (args.span.begin >= args.span.end) return;
  args.sums += args.span.begin - all.span.begin;
  if (UsesDots(args.rows.rows_per_head())) {
    return AddByDots(args, AttentionParts(args.rows, args.scratch));
  }
  const bool are_apart = args.head_stride != 0 && args.rows.group > 1;
  const uint32_t n = are_apart ? args.rows.group : 1;
  if (are_apart) args.rows.group = 1;
  for (uint32_t g = 0; g < n; ++g) {
    const AttentionParts parts(args.rows, args.scratch);
    if (UsesDots(args.rows.rows_per_head())) {
      AddByDots(args, parts);
    } else {
      AddByProducts(args, parts);
    }
    args.rows.queries.base += args.rows.query_head_stride;
    args.lse.data += args.lse.head_stride;
    args.sums += args.head_stride;
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(AddWeights);

void AddAttentionWeights(SimdTarget simd, const AttentionWeights& args) {
  KV_DISPATCH(simd, AddWeights)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
