// Attention with many rows per head: tiles of keys and values are multiplied
// with them as matrix products.
#if defined(KVEVICT_CORE_KERNELS_ATTENTION_PRODUCTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_ATTENTION_PRODUCTS_INL_H_
#undef KVEVICT_CORE_KERNELS_ATTENTION_PRODUCTS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_ATTENTION_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/kernels/attention.h"
#include "core/kernels/attention_parts.h"
#include "core/kernels/attention_softmax-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "core/kernels/window_attention_product-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

// Packs rows as [panel, k_dim, KeysPerPanel()], so that no sum over a row's
// logits goes across lanes. Rows that fill up the last panel are 0.
HWY_INLINE void PackRows(const Attention& args, const AttentionParts& parts) {
  const size_t width = KeysPerPanel();
  const size_t dim = args.k_dim;
  float* const row = parts.keys;
  for (uint32_t r = 0; r < args.n_rows() || r % width != 0; ++r) {
    if (r < args.n_rows()) {
      LoadQuery(args, 0, r, row);
      ScaleRow(QueryScale(args.scale, args.softcap), PaddedRow(dim), row);
    } else {
      std::fill_n(row, dim, 0.0f);
    }
    float* const to = parts.queries + r / width * width * dim + r % width;
    for (size_t e = 0; e < dim; ++e) to[e * width] = row[e];
  }
}

// Loads rows of a tile, with elements in order, and prefetches those of the
// next tile.
HWY_INLINE void LoadTile(const RowSource& rows, SlotSpan tile, uint32_t end,
                         uint32_t dim, size_t stride, float* to) {
  const size_t bytes = ElementBytes(rows.dtype);
  const bool asks = bytes > 1 && rows.IsPacked(bytes);
  for (uint32_t t = tile.begin; t < tile.end; ++t, to += stride) {
    const uint32_t next = t + kAttentionTile;
    if (asks && next < end) AskForRows(rows, next, next + 1, dim * bytes);
    LoadRow(rows, t, 0, dim, to);
  }
}

// The logits of rows [row, row + KeysPerPanel()) and the tile.
HWY_INLINE void MultiplyKeys(const Attention& args, uint32_t row,
                             uint32_t n_slots, const AttentionParts& parts) {
  for (size_t t = 0; t < n_slots; t += kRowsPerBlock) {
    MultiplyRows<false>(
        parts.keys + t * parts.key_stride, parts.key_stride, 1,
        parts.queries + size_t{row} * args.k_dim, KeysPerPanel(), args.k_dim,
        parts.logits + t * parts.logit_stride + row, parts.logit_stride);
  }
}

// Caps the logits of rows [row, row + KeysPerPanel()), and adds the biases of a
// tile.
inline HWY_NOINLINE void AddBiases(const Attention& args, uint32_t row,
                                   SlotSpan tile, const AttentionParts& parts) {
  const RowTag d;
  const auto cap = hn::Set(d, args.softcap * kLog2OfE);
  float biases[kAttentionTile];
  LoadBiases(args.biases, tile, kAttentionTile, biases);
  for (size_t t = 0; t < tile.size(); ++t) {
    const auto bias = hn::Set(d, biases[t]);
    float* const logits = parts.logits + t * parts.logit_stride + row;
    for (size_t r = 0; r < KeysPerPanel(); r += hn::Lanes(d)) {
      auto x = hn::LoadU(d, logits + r);
      if (args.softcap != 0.0f) x = Cap(d, cap, x);
      hn::StoreU(hn::Add(x, bias), d, logits + r);
    }
  }
}

// Caps logits, and sets those that rows do not see to -infinity.
template <bool kMasked, class D, class V = hn::VFromD<D>>
HWY_INLINE V Seen(D d, V cap, bool is_capped, V x, size_t t, V begin, V end) {
  if (is_capped) x = Cap(d, cap, x);
  if constexpr (kMasked) {
    const auto slot = hn::Set(d, static_cast<float>(t));
    const auto seen = hn::And(hn::Ge(slot, begin), hn::Lt(slot, end));
    x = hn::IfThenElse(seen, x, hn::Set(d, kNothing));
  }
  return x;
}

// The weights of a vector of rows from their logits.
template <bool kMasked>
HWY_INLINE void WeighRows(const Attention& args, size_t row, size_t n_slots,
                          const AttentionState& state,
                          const AttentionParts& parts) {
  const RowTag d;
  float* const logits = parts.logits + row;
  const size_t stride = parts.logit_stride;
  const float softcap = args.softcap_of_biased();
  const bool is_capped = softcap != 0.0f;
  const auto cap = hn::Set(d, softcap * kLog2OfE);
  const auto begin = kMasked ? hn::LoadU(d, parts.begins + row) : hn::Zero(d);
  const auto end = kMasked ? hn::LoadU(d, parts.ends + row) : hn::Zero(d);
  auto highest = hn::Set(d, kNothing);
  for (size_t t = 0; t < n_slots; ++t) {
    const auto x = Seen<kMasked>(
        d, cap, is_capped, hn::LoadU(d, logits + t * stride), t, begin, end);
    if (kMasked || is_capped) hn::StoreU(x, d, logits + t * stride);
    highest = hn::Max(highest, x);
  }
  const auto before = hn::LoadU(d, state.reference + row);
  const auto reference = Raised(d, before, highest);
  const auto factor = FactorOf(d, before, reference);
  hn::StoreU(reference, d, state.reference + row);
  hn::StoreU(factor, d, parts.factors + row);
  const auto base = BaseOf(d, reference);
  auto sum = hn::Mul(hn::LoadU(d, state.sum + row), factor);
  auto more = hn::Zero(d);
  for (size_t t = 0; t < n_slots; ++t) {
    float* const at = logits + t * stride;
    const auto e = Exp2(d, hn::Sub(hn::LoadU(d, at), base));
    more = hn::Add(more, e);
    hn::StoreU(e, d, at);
  }
  hn::StoreU(hn::Add(sum, more), d, state.sum + row);
}

// Finds the slots of a tile that rows of a panel see. Returns false if there
// are none.
HWY_INLINE bool FindSeen(const Attention& args, uint32_t row, SlotSpan tile,
                         const AttentionParts& parts) {
  bool any = false;
  const auto width = static_cast<uint32_t>(KeysPerPanel());
  for (uint32_t r = row; r < row + width; ++r) {
    SlotSpan seen;
    if (r < args.n_rows()) {
      seen = SeenInTile(args, r / args.group, tile.begin, tile.size());
    }
    any = any || seen.size() > 0;
    parts.begins[r] = static_cast<float>(seen.begin);
    parts.ends[r] = static_cast<float>(seen.end);
  }
  return any;
}

HWY_INLINE bool AllFinite(const float* rows, size_t n_rows, size_t n,
                          size_t stride) {
  const RowTag d;
  auto most = hn::Zero(d);
  // NaN or infinity times 0 is NaN, and the sum keeps it.
  for (size_t r = 0; r < n_rows; ++r, rows += stride) {
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      most = hn::MulAdd(hn::LoadU(d, rows + i), hn::Zero(d), most);
    }
  }
  return hn::AllTrue(d, hn::Eq(most, most));
}

// Adds the tile's values to rows [begin, end), weighted.
HWY_INLINE void GatherValues(const Attention& args, SlotSpan rows,
                             size_t n_slots, const float* values,
                             size_t value_stride, const AttentionParts& parts,
                             const AttentionState& state) {
  const size_t stride = AttentionState::OutStride(args.v_dim);
  for (size_t e = 0; e < args.v_dim; e += KeysPerPanel()) {
    for (size_t r = rows.begin; r < rows.end; r += kRowsPerBlock) {
      MultiplyRows<true>(parts.logits + r, 1, parts.logit_stride, values + e,
                         value_stride, n_slots, state.out + r * stride + e,
                         stride);
    }
  }
}

// The same in the same order, for tiles with a NaN or infinite value that some
// rows do not see.
HWY_INLINE void GatherSeenValues(const Attention& args, SlotSpan tile,
                                 const float* values, size_t value_stride,
                                 const AttentionParts& parts,
                                 const AttentionState& state) {
  const size_t stride = AttentionState::OutStride(args.v_dim);
  for (uint32_t r = 0; r < args.n_rows(); ++r) {
    const SlotSpan seen =
        SeenInTile(args, r / args.group, tile.begin, tile.size());
    for (uint32_t t = seen.begin; t < seen.end; ++t) {
      AddScaledRow(values + t * value_stride,
                   parts.logits[t * parts.logit_stride + r],
                   PaddedRow(args.v_dim), state.out + r * stride);
    }
  }
}

// The weights of all rows for the tile whose keys are loaded. Returns the range
// of rows that see anything; other rows have weights of 0.
HWY_INLINE SlotSpan WeighTile(const Attention& args, SlotSpan tile,
                              bool all_see, const AttentionState& state,
                              const AttentionParts& parts) {
  const auto width = static_cast<uint32_t>(KeysPerPanel());
  const size_t stride = AttentionState::OutStride(args.v_dim);
  SlotSpan rows = {UINT32_MAX, 0};
  for (uint32_t row = 0; row < args.n_rows(); row += width) {
    if (!all_see && !FindSeen(args, row, tile, parts)) {
      for (uint32_t t = 0; t < tile.size(); ++t) {
        std::fill_n(parts.logits + t * parts.logit_stride + row, width, 0.0f);
      }
      continue;
    }
    rows = {std::min(rows.begin, row), row + width};
    MultiplyKeys(args, row, tile.size(), parts);
    if (args.has_biases()) AddBiases(args, row, tile, parts);
    for (uint32_t r = row; r < row + width; r += hn::Lanes(RowTag())) {
      if (all_see) {
        WeighRows<false>(args, r, tile.size(), state, parts);
      } else {
        WeighRows<true>(args, r, tile.size(), state, parts);
      }
    }
    for (uint32_t r = row; r < row + width; ++r) {
      if (HWY_LIKELY(parts.factors[r] == 1.0f)) continue;
      ScaleRow(parts.factors[r], PaddedRow(args.v_dim), state.out + r * stride);
    }
  }
  return rows;
}

HWY_INLINE void AttendByProducts(const Attention& args, SlotSpan span,
                                 const AttentionState& state,
                                 const AttentionParts& parts) {
  PackRows(args, parts);
  const bool shares_rows = args.values_are_keys;
  const float* const values = shares_rows ? parts.keys : parts.values;
  const size_t value_stride =
      shares_rows ? parts.key_stride : parts.value_stride;
  for (uint32_t slot = span.begin; slot < span.end; slot += kAttentionTile) {
    const SlotSpan tile = {slot, std::min(span.end, slot + kAttentionTile)};
    LoadTile(args.keys, tile, span.end, args.k_dim, parts.key_stride,
             parts.keys);
    const bool all_see = AllSee(args, slot, tile.size());
    const SlotSpan rows = WeighTile(args, tile, all_see, state, parts);
    if (!shares_rows) {
      LoadTile(args.values, tile, span.end, args.v_dim, parts.value_stride,
               parts.values);
    }
    if (all_see ||
        AllFinite(values, tile.size(), PaddedRow(args.v_dim), value_stride)) {
      GatherValues(args, rows, tile.size(), values, value_stride, parts, state);
    } else {
      GatherSeenValues(args, tile, values, value_stride, parts, state);
    }
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
