// Reduces the weights of a tile over the rows and heads of a window.
#if defined(KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_ROWS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_ROWS_INL_H_
#undef KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_ROWS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_WINDOW_ATTENTION_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/kernels/log-inl.h"
#include "core/kernels/reduce_rows-inl.h"
#include "core/kernels/window_attention.h"
#include "core/kernels/window_attention_layout.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// ---- What rows see ----

// The number of keys that row `w` of the window sees: its own token and those
// before it, or all; or what the list says.
HWY_INLINE size_t VisibleKeys(const WindowAttention& args, size_t w) {
  if (args.list != nullptr) return args.list[w].n_visible;
  if (args.rows.all_keys) return args.n_tokens;
  const size_t n_past = size_t{args.n_tokens} - args.window;
  return args.rows.past_only ? n_past : n_past + w + 1;
}

// The number of those in a tile.
HWY_INLINE size_t VisibleKeys(const WindowAttention& args, size_t tile,
                              size_t w) {
  const size_t n = VisibleKeys(args, w);
  const size_t first = tile * kTileKeys;
  return n <= first ? 0 : std::min(n - first, kTileKeys);
}

// Rows of a window see more keys the later they are. Those of a list need not.
HWY_INLINE bool SeesLess(const ListedRow& a, const ListedRow& b) {
  return a.n_visible < b.n_visible;
}

// Whether every row of a batch sees the whole tile.
HWY_INLINE bool IsUnmasked(const WindowAttention& args, const RowBatch& batch,
                           size_t tile) {
  if (args.list != nullptr) {
    const ListedRow* const first = args.list + batch.row;
    return std::min_element(first, first + batch.n_rows, SeesLess)->n_visible >=
           (tile + 1) * kTileKeys;
  }
  return VisibleKeys(args, tile, batch.row) == kTileKeys;
}

// The number of tiles in which a batch sees keys. With a list it is that in
// which any row does, since the last batch scales what all have added.
HWY_INLINE size_t TilesOf(const WindowAttention& args, const RowBatch& batch) {
  const size_t n =
      args.list != nullptr
          ? std::max_element(args.list, args.list + args.window, SeesLess)
                ->n_visible
          : VisibleKeys(args, batch.row + batch.n_rows - 1);
  return (n + kTileKeys - 1) / kTileKeys;
}

// ---- Rows ----

// The number of keys in a tile.
HWY_INLINE size_t KeysOf(const WindowAttention& args, size_t tile) {
  return std::min(kTileKeys, size_t{args.n_tokens} - tile * kTileKeys);
}

template <bool kMax, class V>
HWY_INLINE V AddWeight(V exps, V weight, V sum) {
  if constexpr (kMax) return Combine<true>(sum, hn::Mul(exps, weight));
  return hn::MulAdd(exps, weight, sum);
}

// out[0, KeysOf(tile)) = weighted sum, or maximum, over a batch's rows of one
// query head. It is added to the present content if earlier rows exist, and
// multiplied by out_scale after the last rows. Keys that a row does not see are
// left out even if its weight is NaN.
template <bool kMasked, bool kMax>
HWY_INLINE void SumRows(const WindowAttention& args, const RowBatch& batch,
                        size_t tile, const float* HWY_RESTRICT exps,
                        const float* HWY_RESTRICT weights,
                        float* HWY_RESTRICT out) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t n_keys = KeysOf(args, tile);
  const bool is_first = batch.row == 0;
  const bool is_last = batch.row + batch.n_rows == args.window;
  const auto scale = hn::Set(d, is_last ? args.out_scale : 1.0f);
  // Four vectors at once hide the latency of the additions.
  for (size_t key = 0; key < n_keys; key += 4 * lanes) {
    const auto before = [&](size_t i) HWY_ATTR {
      if (is_first) return hn::Zero(d);
      const size_t at = std::min(n_keys, key + i);
      return hn::LoadN(d, out + at, std::min(lanes, n_keys - at));
    };
    auto total0 = before(0), total1 = before(lanes), total2 = before(2 * lanes),
         total3 = before(3 * lanes);
    for (size_t begin = 0; begin < batch.n_rows; begin += kRowsPerSum) {
      const size_t end = std::min<size_t>(begin + kRowsPerSum, batch.n_rows);
      auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
      for (size_t r = begin; r < end; ++r) {
        const auto weight = hn::Set(d, weights[r]);
        const float* e = exps + r * kTileKeys + key;
        const size_t n_visible =
            kMasked ? VisibleKeys(args, tile, batch.row + r) : 0;
        if (kMasked && n_visible == 0) continue;
        const auto add = [&](size_t i, auto sum) HWY_ATTR {
          const auto more = AddWeight<kMax>(hn::LoadU(d, e + i), weight, sum);
          if constexpr (!kMasked) return more;
          const size_t unseen = std::min(n_visible, key + i);
          return hn::IfThenElse(hn::FirstN(d, n_visible - unseen), more, sum);
        };
        sum0 = add(0, sum0);
        sum1 = add(lanes, sum1);
        sum2 = add(2 * lanes, sum2);
        sum3 = add(3 * lanes, sum3);
      }
      total0 = Combine<kMax>(total0, sum0);
      total1 = Combine<kMax>(total1, sum1);
      total2 = Combine<kMax>(total2, sum2);
      total3 = Combine<kMax>(total3, sum3);
    }
    const auto store = [&](size_t i, auto total) HWY_ATTR {
      const size_t at = std::min(n_keys, key + i);
      hn::StoreN(hn::Mul(total, scale), d, out + at,
                 std::min(lanes, n_keys - at));
    };
    store(0, total0);
    store(lanes, total1);
    store(2 * lanes, total2);
    store(3 * lanes, total3);
  }
}

// The number of a tile's slots that are before the window.
HWY_INLINE size_t PastKeys(const WindowAttention& args, size_t tile) {
  const size_t n_past = size_t{args.n_tokens} - args.window;
  return n_past - std::min(n_past, tile * kTileKeys);
}

// Whether more than the sum of a window's rows is needed.
HWY_INLINE bool SpreadsRows(const WindowAttention& args) {
  return args.rows.spread > 0.0f ||
         (args.measure != nullptr && !args.measure->is_of_ends);
}

// The result of SumRows() for a whole window, plus what the variance of its
// rows adds. With kMeasures, entropy and variance go to args.measure.
template <bool kMasked, bool kMeasures>
HWY_INLINE void SpreadRows(const WindowAttention& args, const RowBatch& batch,
                           size_t tile, const float* HWY_RESTRICT exps,
                           const float* HWY_RESTRICT weights,
                           float* HWY_RESTRICT out) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t n_keys = KeysOf(args, tile);
  const size_t n_past = PastKeys(args, tile);
  const auto n_rows = static_cast<float>(batch.n_rows);
  const auto per_row = hn::Set(d, 1.0f / n_rows);
  const auto unbiased = hn::Set(d, 1.0f / (n_rows - 1.0f));
  const auto spread = hn::Set(d, args.rows.spread * n_rows);
  const auto rounding = hn::Set(d, kVarianceRounding);
  const auto scale = hn::Set(d, args.out_scale);
  auto all_entropy = hn::Zero(d), all_variance = hn::Zero(d);
  for (size_t key = 0; key < n_keys; key += lanes) {
    auto sum = hn::Zero(d), squares = hn::Zero(d), entropy = hn::Zero(d);
    for (size_t r = 0; r < batch.n_rows; ++r) {
      auto weight = hn::Set(d, weights[r]);
      auto e = hn::LoadU(d, exps + r * kTileKeys + key);
      if constexpr (kMasked) {
        const size_t n_visible = VisibleKeys(args, tile, batch.row + r);
        if (n_visible == 0) continue;
        const size_t unseen = std::min(n_visible, key);
        const auto seen = hn::FirstN(d, n_visible - unseen);
        e = hn::IfThenElseZero(seen, e);
        weight = hn::IfThenElseZero(seen, weight);
      }
      const auto a = hn::Mul(e, weight);
      sum = hn::MulAdd(e, weight, sum);  // in the order of SumRows()
      squares = hn::MulAdd(a, a, squares);
      if constexpr (kMeasures) {
        const auto log = LogOf(d, hn::Add(a, hn::Set(d, 1e-10f)));
        entropy = hn::NegMulAdd(a, log, entropy);
      }
    }
    const auto apart = hn::NegMulAdd(hn::Mul(sum, per_row), sum, squares);
    const auto variance = hn::Mul(
        unbiased,
        hn::IfThenZeroElse(hn::Le(apart, hn::Mul(squares, rounding)), apart));
    const auto total = hn::Mul(hn::MulAdd(variance, spread, sum), scale);
    hn::StoreN(total, d, out + key, std::min(lanes, n_keys - key));
    if constexpr (kMeasures) {
      const auto is_past = hn::FirstN(d, n_past - std::min(n_past, key));
      all_entropy = hn::Add(all_entropy, hn::IfThenElseZero(is_past, entropy));
      all_variance =
          hn::Add(all_variance, hn::IfThenElseZero(is_past, variance));
    }
  }
  if constexpr (kMeasures) {
    args.measure->first += hn::ReduceSum(d, all_entropy);
    args.measure->variance += hn::ReduceSum(d, all_variance);
  }
}

// SumRows() for whole windows, with spread and measure if requested.
template <bool kMasked>
HWY_INLINE void SpreadOrMeasureRows(const WindowAttention& args,
                                    const RowBatch& batch, size_t tile,
                                    const float* HWY_RESTRICT exps,
                                    const float* HWY_RESTRICT weights,
                                    float* HWY_RESTRICT out) {
  if (args.measure != nullptr && !args.measure->is_of_ends) {
    SpreadRows<kMasked, true>(args, batch, tile, exps, weights, out);
  } else {
    SpreadRows<kMasked, false>(args, batch, tile, exps, weights, out);
  }
}

// Adds up a tile's weights in the first and last slots before the window.
HWY_NOINLINE void MeasureEnds(const WindowAttention& args,
                              const RowBatch& batch, size_t tile,
                              const WindowAttentionScratch& s) {
  const RowTag d;
  const size_t before = tile * kTileKeys;
  const size_t n_past = size_t{args.n_tokens} - args.window;
  const size_t end = std::min(PastKeys(args, tile), kTileKeys);
  const size_t last = n_past - std::min<size_t>(n_past, args.measure->n_last);
  const size_t n_first =
      std::clamp<size_t>(args.measure->n_first, before, before + end) - before;
  const size_t from = std::clamp<size_t>(last, before, before + end) - before;
  if (n_first == 0 && from == end) return;
  const float* const weights = s.TileReferences(tile);
  auto sum = hn::Zero(d);
  for (size_t r = 0; r < batch.size(); ++r) {
    const auto weight = hn::Set(d, weights[r]);
    const float* const e = s.TileExps(tile) + r * kTileKeys;
    for (size_t key = 0; key < end; key += hn::Lanes(d)) {
      const auto under = [&](size_t n) HWY_ATTR {
        return hn::FirstN(d, n - std::min(n, key));
      };
      const auto counts =
          hn::Or(under(n_first), hn::AndNot(under(from), under(end)));
      sum = hn::Add(sum, hn::IfThenElseZero(
                             counts, hn::Mul(hn::LoadU(d, e + key), weight)));
    }
  }
  args.measure->first += hn::ReduceSum(d, sum);
}

template <bool kMax>
HWY_NOINLINE void SumTile(const WindowAttention& args, const RowBatch& batch,
                          size_t tile, const WindowAttentionScratch& s) {
  const bool unmasked = IsUnmasked(args, batch, tile);
  const bool reduces = args.group_reduce.has_value();
  float* out = reduces
                   ? s.HeadSums(tile)
                   : args.out + batch.head * args.out_stride + tile * kTileKeys;
  const size_t out_stride = reduces ? kTileKeys : args.out_stride;
  for (size_t h = 0; h < batch.n_heads; ++h) {
    const size_t row = h * batch.n_rows;
    const float* exps = s.TileExps(tile) + row * kTileKeys;
    const float* weights = s.TileReferences(tile) + row;
    if (!kMax && SpreadsRows(args)) {
      if (unmasked) {
        SpreadOrMeasureRows<false>(args, batch, tile, exps, weights,
                                   out + h * out_stride);
      } else {
        SpreadOrMeasureRows<true>(args, batch, tile, exps, weights,
                                  out + h * out_stride);
      }
    } else if (unmasked) {
      SumRows<false, kMax>(args, batch, tile, exps, weights,
                           out + h * out_stride);
    } else {
      SumRows<true, kMax>(args, batch, tile, exps, weights,
                          out + h * out_stride);
    }
  }
}

// Writes a tile's weights of each row by itself.
HWY_NOINLINE void StoreRows(const WindowAttention& args, const RowBatch& batch,
                            size_t tile, const WindowAttentionScratch& s) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t n_keys = KeysOf(args, tile);
  for (size_t r = 0; r < batch.size(); ++r) {
    const size_t row = batch.row + r % batch.n_rows;
    const size_t head = batch.head + r / batch.n_rows;
    float* const out = args.out + (head * args.window + row) * args.out_stride +
                       tile * kTileKeys;
    const float* const e = s.TileExps(tile) + r * kTileKeys;
    const auto weight = hn::Set(d, s.TileReferences(tile)[r]);
    const size_t n_visible = VisibleKeys(args, tile, row);
    for (size_t key = 0; key < n_keys; key += lanes) {
      const auto seen = hn::FirstN(d, n_visible - std::min(n_visible, key));
      const auto a = hn::Mul(hn::LoadU(d, e + key), weight);
      hn::StoreN(hn::IfThenElseZero(seen, a), d, out + key,
                 std::min(lanes, n_keys - key));
    }
  }
}

// Adds the heads of a batch, whose sums are complete, to those before.
HWY_NOINLINE void ReduceTile(const WindowAttention& args, const RowBatch& batch,
                             size_t tile, const WindowAttentionScratch& s) {
  const float* sums = s.HeadSums(tile);
  const size_t n_keys = KeysOf(args, tile);
  float* out = args.out + tile * kTileKeys;
  const bool goes_on = batch.head > 0;
  const bool is_last = batch.head + batch.n_heads == args.group;
  if (*args.group_reduce == Reduce::kMax) {
    ReduceRowsTo<true>(sums, batch.n_heads, kTileKeys, n_keys, 1.0f, goes_on,
                       out);
  } else {
    const bool divides = is_last && *args.group_reduce == Reduce::kMean;
    const float scale = divides ? 1.0f / static_cast<float>(args.group) : 1.0f;
    ReduceRowsTo<false>(sums, batch.n_heads, kTileKeys, n_keys, scale, goes_on,
                        out);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
