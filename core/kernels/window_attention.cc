#include "core/kernels/window_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/window_attention_layout.h"
#include "core/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/window_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/kernels/cap-inl.h"
#include "core/kernels/key_dots-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "core/kernels/window_attention_product-inl.h"
#include "core/kernels/window_attention_rows-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A row's exponents are relative to a reference near its maximum so far. It is
// raised only if a logit exceeds it by this much (base 2). That is rare, and
// far from overflow.
constexpr float kReferenceMargin = 8.0f;

constexpr double kLog2E = 1.4426950408889634073599246810;

// The queries whose logits give those of a batch.
HWY_INLINE RowBatch QueriesOf(const WindowAttention& args,
                              const RowBatch& batch) {
  const uint32_t n = args.rows.logit_heads;
  return {batch.head * n, batch.n_heads * n, batch.row, batch.n_rows};
}

// Loads a batch of few queries, times factor.
HWY_INLINE void LoadQueries(const WindowAttention& args, const RowBatch& batch,
                            float factor, float* HWY_RESTRICT queries) {
  const size_t dim = PaddedRow(args.head_dim);
  for (size_t r = 0; r < batch.size(); ++r) {
    LoadQuery(args, batch, r, queries + r * dim);
    ScaleRow(factor, dim, queries + r * dim);
  }
}

// Whether a query of a block sees a key of the tile. Later queries of a head
// see more keys.
HWY_INLINE bool SeesTile(const WindowAttention& args, const RowBatch& queries,
                         size_t block, size_t tile) {
  if (args.list != nullptr) return true;
  const size_t first = block * kRowsPerBlock;
  const size_t last = std::min(first + kRowsPerBlock, queries.size()) - 1;
  const bool ends_head = first / queries.n_rows != last / queries.n_rows;
  const size_t row = ends_head ? queries.n_rows - 1 : last % queries.n_rows;
  return VisibleKeys(args, tile, queries.row + row) > 0;
}

// Prefetches the rows of the next tile, a few with every block, since they are
// too far apart for the hardware to predict.
class KeyPrefetcher {
 public:
  KeyPrefetcher(const WindowAttention& args, size_t tile, size_t n_calls)
      : args_(args),
        row_(args.first_key +
             std::min<size_t>(tile * kTileKeys, args.n_tokens)),
        end_(std::min<size_t>(row_ + kTileKeys,
                              size_t{args.first_key} + args.n_tokens)),
        rows_per_call_((kTileKeys + n_calls - 1) / n_calls) {
    // Elements that are not packed may each be on a cache line of their own,
    // which is too many to prefetch.
    const DType dtype = args.keys.dtype;
    if (!args.keys.IsPacked(ElementBytes(dtype))) row_ = end_;
    row_bytes_ = static_cast<int64_t>(PackedBytes(dtype, args.head_dim));
  }

  HWY_INLINE void Next() {
    const size_t end = std::min(end_, row_ + rows_per_call_);
    for (; row_ < end; ++row_) {
      const uint8_t* row = args_.keys.Row(static_cast<uint32_t>(row_));
      for (int64_t i = 0; i < row_bytes_; i += 64) {
        hwy::Prefetch(row + i);
      }
    }
  }

 private:
  const WindowAttention& args_;
  size_t row_;
  size_t end_;
  size_t rows_per_call_;
  int64_t row_bytes_;
};

// Computes the logits, in base 2, of a few queries and one tile of keys, which
// are multiplied where they lie.
HWY_NOINLINE void DotTile(const WindowAttention& args, const RowBatch& queries,
                          size_t tile, const WindowAttentionScratch& s) {
  const uint32_t first =
      args.first_key + static_cast<uint32_t>(tile * kTileKeys);
  const uint32_t end = args.first_key + args.n_tokens;
  const SlotSpan keys = {first,
                         first + static_cast<uint32_t>(KeysOf(args, tile))};
  WithWholeRows(args.keys, args.head_dim, [&](auto rows) HWY_ATTR {
    DotKeys<decltype(rows)>(
        {args.keys, 0, 1, args.head_dim, end, s.queries,
         static_cast<uint32_t>(queries.size()), s.staged, nullptr},
        keys, kTileKeys, s.logits);
  });
}

// Computes the logits, in base 2, of a batch and one tile of packed keys. It
// goes panel by panel, so that a panel stays in the L1 cache while the queries
// stream by.
HWY_NOINLINE void MultiplyTile(const WindowAttention& args,
                               const RowBatch& batch, size_t tile,
                               const WindowAttentionScratch& s) {
  const size_t panel_keys = KeysPerPanel();
  const size_t dim = args.head_dim;
  const RowBatch queries = QueriesOf(args, batch);
  const bool unmasked = IsUnmasked(args, batch, tile);
  const size_t n_blocks = (queries.size() + kRowsPerBlock - 1) / kRowsPerBlock;
  KeyPrefetcher prefetch(args, tile + 1, n_blocks * (kTileKeys / panel_keys));
  const float* panel = s.panels;
  for (size_t key = 0; key < kTileKeys; key += panel_keys) {
    for (size_t block = 0; block < n_blocks; ++block) {
      prefetch.Next();
      if (!unmasked && !SeesTile(args, queries, block, tile)) continue;
      MultiplyBlock(s.queries + block * dim * kRowsPerBlock, panel, dim,
                    s.logits + block * kRowsPerBlock * kTileKeys + key,
                    kTileKeys);
    }
    panel += PaddedRow(dim) * panel_keys;
  }
}

// Replaces the first head's logits of a row by the maximum over all heads of
// that row.
HWY_NOINLINE void MaxLogits(const WindowAttention& args, const RowBatch& batch,
                            const WindowAttentionScratch& s) {
  const size_t n = size_t{batch.n_rows} * kTileKeys;
  for (size_t h = 0; h < batch.n_heads; ++h) {
    const uint32_t n_heads = args.rows.logit_heads;
    ReduceRowsTo<true>(s.logits + h * n_heads * n, n_heads, n, n, 1.0f, false,
                       s.logits + h * n);
  }
}

// Caps all logits of a batch, whichever of them rows see.
HWY_NOINLINE void CapLogits(const WindowAttention& args, const RowBatch& batch,
                            const WindowAttentionScratch& s) {
  const RowTag d;
  const auto cap = hn::Set(d, args.softcap * kLog2OfE);
  for (size_t i = 0; i < batch.size() * kTileKeys; i += hn::Lanes(d)) {
    hn::StoreU(Cap(d, cap, hn::LoadU(d, s.logits + i)), d, s.logits + i);
  }
}

HWY_INLINE bool HasBiases(const WindowAttention& args) {
  return kHasBiases && args.biases.base != nullptr;
}

// Adds the biases of a tile to all logits of a batch.
HWY_NOINLINE void BiasLogits(const WindowAttention& args, const RowBatch& batch,
                             size_t tile, const WindowAttentionScratch& s) {
  const RowTag d;
  HWY_ALIGN float biases[kTileKeys] = {};
  for (size_t key = 0; key < KeysOf(args, tile); ++key) {
    const size_t slot = args.first_key + tile * kTileKeys + key;
    std::memcpy(biases + key, args.biases.Row(static_cast<uint32_t>(slot)),
                sizeof(float));
    biases[key] *= kLog2OfE;
  }
  for (size_t r = 0; r < batch.size(); ++r) {
    float* const logits = s.logits + r * kTileKeys;
    for (size_t i = 0; i < kTileKeys; i += hn::Lanes(d)) {
      hn::StoreU(hn::Add(hn::LoadU(d, logits + i), hn::LoadU(d, biases + i)), d,
                 logits + i);
    }
  }
}

// A row's logits of one tile, -infinity from n_visible on.
template <bool kMasked>
HWY_INLINE hn::VFromD<RowTag> LoadLogits(const float* HWY_RESTRICT logits,
                                         size_t n_visible, size_t i) {
  const RowTag d;
  const auto x = hn::LoadU(d, logits + i);
  if constexpr (!kMasked) return x;
  const auto visible = hn::FirstN(d, n_visible - std::min(n_visible, i));
  return hn::IfThenElse(visible, x, hn::Neg(hn::Inf(d)));
}

// Raises a row's reference if a logit of the tile is far above it, and scales
// its sum, which is relative to it.
template <bool kMasked>
HWY_INLINE void RaiseReference(const float* HWY_RESTRICT logits,
                               size_t n_visible, float* HWY_RESTRICT reference,
                               double* HWY_RESTRICT sum) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  auto highest = LoadLogits<kMasked>(logits, n_visible, 0);
  for (size_t i = lanes; i < kTileKeys; i += lanes) {
    highest = hn::Max(highest, LoadLogits<kMasked>(logits, n_visible, i));
  }
  const auto limit = hn::Set(d, *reference + kReferenceMargin);
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(highest, limit)))) {
    const float raised = hn::ReduceMax(d, highest);
    *sum *= std::exp2(static_cast<double>(*reference) - raised);
    *reference = raised;
  }
}

// exps = 2^(logits - reference) of one row and tile, 0 from n_visible on.
// Returns their sum, NaN if a logit is NaN or +infinity.
template <bool kMasked>
HWY_INLINE float ExpRow(const float* HWY_RESTRICT logits, size_t n_visible,
                        float reference, float* HWY_RESTRICT exps) {
  const RowTag d;
  const size_t lanes = hn::Lanes(d);
  const auto base = hn::Set(d, reference);
  auto tile_sum = hn::Zero(d);
  for (size_t i = 0; i < kTileKeys; i += lanes) {
    const auto e =
        Exp2(d, hn::Sub(LoadLogits<kMasked>(logits, n_visible, i), base));
    tile_sum = hn::Add(tile_sum, e);
    hn::StoreU(e, d, exps + i);
  }
  return hn::ReduceSum(d, tile_sum);
}

// Computes the exponentials of row r of a tile: updates its reference and adds
// to its sum. kMasked if it does not see all of the tile.
template <bool kMasked>
HWY_INLINE void ExpOfRow(size_t tile, size_t r, size_t n_visible,
                         const WindowAttentionScratch& s) {
  const float* logits = s.logits + r * kTileKeys;
  RaiseReference<kMasked>(logits, n_visible, s.references + r, s.sums + r);
  s.sums[r] += ExpRow<kMasked>(logits, n_visible, s.references[r],
                               s.TileExps(tile) + r * kTileKeys);
}

// Computes the exponentials of a tile for all rows. It can be repeated if the
// references are those after the tile before. Rows that see nothing of the tile
// are left out.
HWY_NOINLINE void ExpTile(const WindowAttention& args, const RowBatch& batch,
                          size_t tile, const WindowAttentionScratch& s) {
  const bool unmasked = IsUnmasked(args, batch, tile);
  for (size_t r = 0; r < batch.size(); ++r) {
    const size_t n_visible =
        unmasked ? kTileKeys
                 : VisibleKeys(args, tile, batch.row + r % batch.n_rows);
    if (n_visible == kTileKeys) {
      ExpOfRow<false>(tile, r, n_visible, s);
    } else if (n_visible > 0) {
      ExpOfRow<true>(tile, r, n_visible, s);
    }
  }
  std::memcpy(s.TileReferences(tile), s.references,
              s.n_padded_rows * sizeof(float));
}

// Turns the references of a tile into the weights of its exps:
// 2^(reference of the tile - last reference) / sum of the row.
HWY_INLINE void WeighTile(size_t tile, const WindowAttentionScratch& s) {
  const RowTag d;
  float* weights = s.TileReferences(tile);
  for (size_t r = 0; r < s.n_padded_rows; r += hn::Lanes(d)) {
    const auto below =
        hn::Sub(hn::Load(d, weights + r), hn::Load(d, s.last_references + r));
    hn::Store(hn::Mul(Exp2(d, below), hn::Load(d, s.inverse_sums + r)), d,
              weights + r);
  }
}

// Sets references as before the first tile: log-sum-exps if they are known,
// else below any logit.
HWY_INLINE void ResetReferences(const WindowAttention& args,
                                const RowBatch& batch,
                                const WindowAttentionScratch& s) {
  std::fill_n(s.references, s.n_padded_rows,
              std::numeric_limits<float>::lowest());
  if (args.lse == nullptr) return;
  for (size_t r = 0; r < batch.size(); ++r) {
    float lse;
    std::memcpy(&lse,
                reinterpret_cast<const uint8_t*>(args.lse) +
                    static_cast<int64_t>(batch.head + r / batch.n_rows) *
                        args.lse_head_stride +
                    static_cast<int64_t>(batch.row + r % batch.n_rows) *
                        args.lse_row_stride,
                sizeof(lse));
    // Far above all logits, all exponentials are 0.
    const bool hides_all =
        lse == -std::numeric_limits<float>::infinity() && HasBiases(args);
    s.references[r] = hides_all ? std::numeric_limits<float>::max()
                                : static_cast<float>(lse * kLog2E);
  }
}

// The factor of all weights of row r, without the sum of its exponentials.
HWY_INLINE double RowWeight(const WindowAttention& args, const RowBatch& batch,
                            size_t r) {
  if (args.list != nullptr) {
    return args.list[batch.row + r % batch.n_rows].weight;
  }
  if (!args.rows.weigh_by_past) return 1.0;
  return static_cast<double>(args.n_tokens) - args.window + batch.row +
         static_cast<double>(r % batch.n_rows);
}

// The exponential of row r's sink, relative to its reference.
HWY_INLINE double SinkExp(const WindowAttention& args, const RowBatch& batch,
                          const WindowAttentionScratch& s, size_t r) {
  const uint32_t n = args.rows.logit_heads;
  const float* first = args.sinks + (batch.head + r / batch.n_rows) * size_t{n};
  const double sink = *std::max_element(first, first + n);
  return std::exp2(sink * kLog2E - s.references[r]);
}

// Runs after the last tile of the first pass, or before the only pass.
HWY_INLINE void FinishSums(const WindowAttention& args, const RowBatch& batch,
                           const WindowAttentionScratch& s) {
  std::memcpy(s.last_references, s.references, s.n_padded_rows * sizeof(float));
  if (args.sinks != nullptr && args.lse == nullptr) {
    for (size_t r = 0; r < batch.size(); ++r) {
      s.sums[r] += SinkExp(args, batch, s, r);
    }
  }
  for (size_t r = 0; r < s.n_padded_rows; ++r) {
    // 1, or NaN if the reference is NaN or infinite.
    const double sum = args.lse == nullptr
                           ? s.sums[r]
                           : 1.0 + (s.references[r] - s.references[r]);
    const bool hides_all = sum == 0.0 && HasBiases(args);
    s.inverse_sums[r] =
        hides_all ? 0.0f : static_cast<float>(RowWeight(args, batch, r) / sum);
  }
}

// For a tile that no row of a batch sees. Nothing is added, but the first batch
// sets the sums to 0.
HWY_INLINE void SkipTile(const WindowAttention& args, const RowBatch& batch,
                         size_t tile, const WindowAttentionScratch& s) {
  if (args.rows.apart) {
    for (size_t r = 0; r < batch.size(); ++r) {
      const size_t row = (batch.head + r / batch.n_rows) * args.window +
                         batch.row + r % batch.n_rows;
      std::fill_n(args.out + row * args.out_stride + tile * kTileKeys,
                  KeysOf(args, tile), 0.0f);
    }
    return;
  }
  if (batch.row != 0) return;
  const bool reduces = args.group_reduce.has_value();
  for (size_t h = 0; h < batch.n_heads; ++h) {
    float* out = reduces ? s.HeadSums(tile) + h * kTileKeys
                         : args.out + (batch.head + h) * args.out_stride +
                               tile * kTileKeys;
    std::fill_n(out, KeysOf(args, tile), 0.0f);
  }
}

// First computes the sums of all rows, tile by tile, then their weights, which
// need the sums.
void ComputeBatch(const WindowAttention& args, const RowBatch& batch,
                  float factor, const WindowAttentionScratch& s) {
  const RowBatch queries = QueriesOf(args, batch);
  // Builds without attention do without its dot products too.
  constexpr bool kHasDots = IsBuilt("attend");
  const bool are_few = kHasDots && queries.size() <= kMaxRowsPerBlock;
  if (are_few) {
    LoadQueries(args, queries, factor, s.queries);
  } else {
    PackQueries(args, queries, factor, s.staged, s.queries);
  }
  ResetReferences(args, batch, s);
  std::fill_n(s.sums, s.n_padded_rows, 0.0);

  const auto compute_exps = [&](size_t tile) {
    if (are_few) {
      DotTile(args, queries, tile, s);
    } else {
      PackKeys(
          args.keys, args.first_key + static_cast<uint32_t>(tile * kTileKeys),
          args.first_key + args.n_tokens, args.head_dim, s.staged, s.panels);
      MultiplyTile(args, batch, tile, s);
    }
    if (args.rows.logit_heads > 1) MaxLogits(args, batch, s);
    if (args.softcap != 0.0f) CapLogits(args, batch, s);
    if (HasBiases(args)) BiasLogits(args, batch, tile, s);
    ExpTile(args, batch, tile, s);
  };
  const size_t n_tiles = TilesOf(args, batch);
  const bool one_pass = args.lse != nullptr;
  for (size_t tile = 0; !one_pass && tile < n_tiles; ++tile) compute_exps(tile);

  FinishSums(args, batch, s);
  // Tiles without room of their own continue from the last one that has.
  const size_t n_kept = one_pass ? 0 : s.n_kept_tiles(n_tiles);
  if (n_kept == 0) {
    ResetReferences(args, batch, s);
  } else {
    std::memcpy(s.references, s.TileReferences(n_kept - 1),
                s.n_padded_rows * sizeof(float));
  }
  const bool is_whole = batch.row + batch.n_rows == args.window;
  for (size_t tile = 0; tile < s.n_tiles; ++tile) {
    if (tile >= n_tiles) {
      SkipTile(args, batch, tile, s);
    } else {
      if (tile >= n_kept) compute_exps(tile);
      WeighTile(tile, s);
      if (args.rows.apart) {
        StoreRows(args, batch, tile, s);
      } else if (args.rows.max_of_rows) {
        SumTile<true>(args, batch, tile, s);
      } else {
        SumTile<false>(args, batch, tile, s);
      }
      if (args.measure != nullptr && args.measure->is_of_ends) {
        MeasureEnds(args, batch, tile, s);
      }
    }
    if (args.group_reduce && is_whole) ReduceTile(args, batch, tile, s);
  }
}

void Compute(const WindowAttention& args, const WindowAttentionScratch& s) {
  // Logits in base 2 turn e^x into 2^x.
  const float factor = QueryScale(args.scale, args.softcap);
  for (RowBatch batch = s.batches.First(); batch.head < args.group;
       batch = s.batches.After(batch)) {
    ComputeBatch(args, batch, factor, s);
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(Compute);

}  // namespace

WindowAttentionScratchSize WindowAttentionScratchBytes(uint32_t n_tokens,
                                                       uint32_t window,
                                                       uint32_t group,
                                                       uint32_t head_dim,
                                                       uint32_t logit_heads) {
  const auto with_tiles = [&](size_t n) {
    return WindowAttentionLayout(n_tokens, window, group, head_dim, logit_heads,
                                 n)
        .bytes();
  };
  return {with_tiles(1), with_tiles(SIZE_MAX)};
}

WindowAttentionScratchSize WindowAttentionScratchOfAnyWindow(
    uint32_t n_tokens, uint32_t group, uint32_t head_dim) {
  // A batch has at most this many rows. It has sums of a row per head, or of
  // one head for every tile.
  const size_t rows =
      std::min(size_t{group} * n_tokens, RowBatches::MostRows(head_dim));
  const WindowAttentionScratchSize of_rows = WindowAttentionScratchBytes(
      n_tokens, static_cast<uint32_t>(rows), 1, head_dim);
  const size_t n_tiles = (size_t{n_tokens} + kTileKeys - 1) / kTileKeys;
  const CheckedSize sums =
      CheckedSize(std::max(n_tiles, std::min<size_t>(group, rows))) *
      CheckedSize(kTileKeys * sizeof(float));
  const auto with_sums = [&](size_t bytes) {
    const CheckedSize all = CheckedSize(bytes) + sums;
    return all.ok() ? all.value() : SIZE_MAX;
  };
  return {with_sums(of_rows.least), with_sums(of_rows.best)};
}

void ComputeWindowAttention(SimdTarget simd, const WindowAttention& args) {
  // One pass keeps no exponentials: all tiles use the same memory.
  const size_t scratch_bytes =
      args.lse == nullptr
          ? args.scratch_bytes
          : WindowAttentionScratchBytes(args.n_tokens, args.window, args.group,
                                        args.head_dim, args.rows.logit_heads)
                .least;
  const WindowAttentionLayout layout = WindowAttentionLayout::ThatFits(
      args.n_tokens, args.window, args.group, args.head_dim,
      args.rows.logit_heads, scratch_bytes);
  KV_DISPATCH(simd, Compute)
  (args, WindowAttentionScratch(layout, args.scratch));
}

}  // namespace kvevict
#endif  // HWY_ONCE
