// Scores keys and values by how far they stand out from those after them. It
// does the operations of core/kernels/lag.cc, where they are explained, in the
// same order. So scores have the same bits as on CPUs with a fused
// multiply-add, and no two tokens swap ranks.
#include "lag.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "exp2.cuh"

namespace kvevict::cuda {

constexpr uint32_t kLagLanes = 16;  // threads of a row
constexpr uint32_t kLagRows = kLagThreads / kLagLanes;
constexpr uint32_t kLagDims = kLagPieceDims / kLagLanes;  // elements of a lane
constexpr uint32_t kLagWarps = kLagThreads / 32;
constexpr uint32_t kLagTile = 512;  // keys compared at a time

// A KV head of a layer.
struct LagHead {
  uint32_t n_tokens;
  uint32_t n_ranked;  // partitions that have one after them
  uint64_t scores;    // f32 [n_tokens]; ranked ones first hold spreads of keys

  KV_DEVICE LagHead(const LagParams& p, const LagLayer& layer, uint32_t head)
      : n_tokens(CountOf(p.tokens, layer.first_count, head, layer.n_tokens)),
        scores(layer.scores + uint64_t{head} * layer.n_tokens * sizeof(float)) {
    const uint32_t n = LagPartitions(n_tokens, p.n_sink, p.partition);
    n_ranked = n < 2 ? 0 : n - 1;
  }
};

// Row `row` of a head's scratch: 0 has the spreads of values, 1 and 2 sums of
// squares.
KV_DEVICE uint64_t LagScratch(const LagParams& p, uint32_t row, uint32_t layer,
                              uint32_t head) {
  const uint64_t place =
      (uint64_t{row} * p.n_layers + layer) * p.n_kv_heads + head;
  return p.scratch + place * p.scratch_stride * sizeof(float);
}

// The channels of a piece that a lane has, for rows of one dtype.
template <class Tag>
struct LagPiece {
  const CacheRows& rows;
  uint32_t first;  // first channel; the next ones are kLagLanes apart

  KV_DEVICE bool Has(uint32_t k) const {
    return first + k * kLagLanes < rows.head_dim;
  }
  // All loads of a row are issued together.
  KV_DEVICE void Load(const CacheRow& row, float (&x)[kLagDims]) const {
    if (Tag::kIsPlain && rows.layout.group_elems == 0) {
#pragma unroll
      for (uint32_t k = 0; k < kLagDims; ++k) {
        if (!Has(k)) continue;
        const uint32_t element = first + k * kLagLanes;
        const int64_t offset = int64_t{element} * rows.layout.element_stride;
        x[k] = LoadElement(Tag(), rows, row, {offset, 0, 0, element});
      }
    } else {
      for (uint32_t k = 0; k < kLagDims; ++k) {
        if (!Has(k)) continue;
        const uint32_t element = first + k * kLagLanes;
        x[k] = LoadElement(Tag(), rows, row, FindElement(Tag(), rows, element));
      }
    }
  }
};

// Computes the least element and 1 / range of channel threadIdx.x of a piece
// from all warps' least and greatest elements. Both are 0 if there is no range.
KV_DEVICE void LagRange(const float* least, const float* greatest, float* base,
                        float* scale) {
  float low = least[threadIdx.x];
  float high = greatest[threadIdx.x];
  for (uint32_t w = 1; w < kLagWarps; ++w) {
    const float l = least[w * kLagPieceDims + threadIdx.x];
    const float h = greatest[w * kLagPieceDims + threadIdx.x];
    low = l < low ? l : low;
    high = h > high ? h : high;
  }
  const float infinity = ToFloat<kF32>(kInfinityBits);
  const float range = high - low;
  const float inverse = 1.0f / range;
  const bool is_range = range > 0.0f && range < infinity && inverse < infinity;
  base[threadIdx.x] = is_range ? low : 0.0f;
  scale[threadIdx.x] = is_range ? inverse : 0.0f;
}

// The spread in units of ln 2; NaN if it is not finite.
KV_DEVICE float LagSpread(float sum, float squares, const LagRows& rows) {
  const float mean = sum * rows.mean_scale;
  float rest = Fma(-mean, sum, squares);
  rest = rest < 0.0f ? 0.0f : rest;
  const float spread = SquareRoot(rest * rows.spread_scale);
  return spread < ToFloat<kF32>(kInfinityBits) ? spread
                                               : ToFloat<kF32>(kNaNBits);
}

// The work of a block of lag_spreads.
struct LagPart {
  const LagRows& rows;
  uint64_t base;  // slot 0, head 0
  uint64_t block_table;
  uint32_t head;
  uint32_t first;      // first slot
  uint32_t partition;  // slots
  uint64_t spreads;    // f32, at slot `first`; sums before the last piece
  uint64_t squares;    // likewise; unused for rows of one piece

  KV_DEVICE CacheRow Row(uint32_t slot) const {
    return FindRow(rows.rows, base, block_table, head, slot);
  }
  // Loads rows r, r + kLagRows, ... of the partition that begins at slot
  // `begin`, all at once. Row r stands for those past the end.
  template <class Tag, uint32_t kAtOnce>
  KV_DEVICE void Load(const LagPiece<Tag>& channels, uint32_t begin, uint32_t r,
                      float (&x)[kAtOnce][kLagDims]) const {
    CacheRow found[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t at = r + n * kLagRows;
      found[n] = Row(begin + (at < partition ? at : r));
    }
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) channels.Load(found[n], x[n]);
  }
};

template <class Tag>
KV_DEVICE void LagSpreadsOf(const LagPart& part, float* least, float* greatest,
                            float* base, float* scale) {
  const uint32_t lane = threadIdx.x % kLagLanes;
  const uint32_t row = threadIdx.x / kLagLanes;
  const uint32_t dim = part.rows.rows.head_dim;
  // Rows of a thread on their way, so that memory stays busy.
  constexpr uint32_t kAtOnce = Tag::kIsPlain ? 4 : 1;
  for (uint32_t piece = 0; piece < dim; piece += kLagPieceDims) {
    const LagPiece<Tag> channels{part.rows.rows, piece + lane};
    float x[kAtOnce][kLagDims] = {};
    float low[kLagDims], high[kLagDims];
#pragma unroll
    for (uint32_t k = 0; k < kLagDims; ++k) {
      low[k] = ToFloat<kF32>(kInfinityBits);
      high[k] = -low[k];
    }
    for (uint32_t r = row; r < part.partition; r += kAtOnce * kLagRows) {
      part.Load(channels, part.first + part.partition, r, x);
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce; ++n) {
#pragma unroll
        for (uint32_t k = 0; k < kLagDims; ++k) {
          low[k] = x[n][k] < low[k] ? x[n][k] : low[k];
          high[k] = x[n][k] > high[k] ? x[n][k] : high[k];
        }
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kLagDims; ++k) {
      const float l = ShuffleXor(low[k], kLagLanes);
      const float h = ShuffleXor(high[k], kLagLanes);
      if (threadIdx.x % 32 >= kLagLanes) continue;
      const uint32_t place =
          threadIdx.x / 32 * kLagPieceDims + lane + k * kLagLanes;
      least[place] = l < low[k] ? l : low[k];
      greatest[place] = h > high[k] ? h : high[k];
    }
    BlockSync();
    if (threadIdx.x < kLagPieceDims) LagRange(least, greatest, base, scale);
    BlockSync();
    float bases[kLagDims], scales[kLagDims];
#pragma unroll
    for (uint32_t k = 0; k < kLagDims; ++k) {
      bases[k] = base[lane + k * kLagLanes];
      scales[k] = scale[lane + k * kLagLanes];
    }
    for (uint32_t first = 0; first < part.partition;
         first += kAtOnce * kLagRows) {
      if (first + row < part.partition) {
        part.Load(channels, part.first, first + row, x);
      }
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce; ++n) {
        const uint32_t r = first + n * kLagRows + row;
        float sum = 0.0f;
        float squares = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < kLagDims; ++k) {
          if (!channels.Has(k)) continue;
          const float v = Fma(x[n][k] - bases[k], scales[k], -0.5f);
          sum += v;
          squares = Fma(v, v, squares);
        }
        sum = SumOverLanes(sum, kLagLanes);
        squares = SumOverLanes(squares, kLagLanes);
        if (r >= part.partition || lane != 0) continue;
        const uint64_t offset = uint64_t{r} * sizeof(float);
        if (piece > 0) {
          sum = LoadGlobal<float>(part.spreads + offset) + sum;
          squares = LoadGlobal<float>(part.squares + offset) + squares;
        }
        if (dim - piece <= kLagPieceDims) {
          sum = LagSpread(sum, squares, part.rows);
        } else {
          StoreGlobal(part.squares + offset, squares);
        }
        StoreGlobal(part.spreads + offset, sum);
      }
    }
  }
}

// Grid (partitions that have one after them, of the longest head, n_kv_heads, 2
// n_layers: keys, values). 16 lanes share a row, each with every 16th channel,
// whose range it finds in the next partition and keeps in registers. A thread
// has its elements of four rows on their way. Reads every row twice, the second
// time by the next block, and writes 4 bytes per row.
KV_KERNEL(lag_spreads, LagParams, kLagThreads, 2) {
  KV_SHARED(float, least, kLagWarps* kLagPieceDims);
  KV_SHARED(float, greatest, kLagWarps* kLagPieceDims);
  KV_SHARED(float, base, kLagPieceDims);
  KV_SHARED(float, scale, kLagPieceDims);
  const uint32_t l = blockIdx.z / 2;
  const uint32_t is_values = blockIdx.z % 2;
  const uint32_t head = blockIdx.y;
  const LagLayer& layer = p.layers[l];
  const LagHead tokens(p, layer, head);
  if (blockIdx.x >= tokens.n_ranked) return;
  const uint32_t first = p.n_sink + blockIdx.x * p.partition;
  const uint64_t offset = uint64_t{first} * sizeof(float);
  const LagRows& rows = is_values != 0 ? p.values : p.keys;
  const LagPart part{
      rows,
      is_values != 0 ? layer.values : layer.keys,
      layer.block_table,
      head,
      first,
      p.partition,
      (is_values != 0 ? LagScratch(p, 0, l, head) : tokens.scores) + offset,
      LagScratch(p, 1 + is_values, l, head) + offset};
  WithDType(rows.rows.dtype, [&](auto tag) {
    LagSpreadsOf<decltype(tag)>(part, least, greatest, base, scale);
  });
}

// The greatest number of all threads, or 0 if all are NaN.
KV_DEVICE float LagGreatest(float v, float* shared) {
#pragma unroll
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const float other = ShuffleXor(v, mask);
    v = other > v ? other : v;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  BlockSync();
  v = shared[0];
  for (uint32_t w = 1; w < kLagRankThreads / 32; ++w) {
    v = shared[w] > v ? shared[w] : v;
  }
  return v;
}

// Computes the scores of slots [first, first + n) from the spreads; keys
// overwrite them.
KV_DEVICE void LagRank(uint32_t n, uint64_t scores, uint64_t values,
                       float unit) {
  KV_SHARED(float, of_keys, kLagRankThreads / 32);
  KV_SHARED(float, of_values, kLagRankThreads / 32);
  KV_SHARED(float, inverse, 2);
  KV_SHARED(uint32_t, tile, kLagTile);
  float most_key = 0.0f;
  float most_value = 0.0f;
  for (uint32_t i = threadIdx.x; i < n; i += kLagRankThreads) {
    const float k = LoadGlobal<float>(scores + uint64_t{i} * sizeof(float));
    const float v = LoadGlobal<float>(values + uint64_t{i} * sizeof(float));
    most_key = k > most_key ? k : most_key;
    most_value = v > most_value ? v : most_value;
  }
  most_key = LagGreatest(most_key, of_keys);
  most_value = LagGreatest(most_value, of_values);
  // One half of a warp sums keys, the other half values.
  if (threadIdx.x < 2 * kLagLanes) {
    const bool is_key = threadIdx.x < kLagLanes;
    const uint64_t from = is_key ? scores : values;
    const float most = is_key ? most_key : most_value;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x % kLagLanes; i < n; i += kLagLanes) {
      const float weight = SameExp2(
          LoadGlobal<float>(from + uint64_t{i} * sizeof(float)) - most);
      sum += weight == weight ? weight : 0.0f;
    }
    sum = SumOverLanes(sum, kLagLanes);
    if (threadIdx.x % kLagLanes == 0) inverse[is_key ? 0 : 1] = 1.0f / sum;
  }
  BlockSync();
  for (uint32_t i = threadIdx.x; i < n; i += kLagRankThreads) {
    const uint64_t offset = uint64_t{i} * sizeof(float);
    const float k = SameExp2(LoadGlobal<float>(scores + offset) - most_key);
    const float v = SameExp2(LoadGlobal<float>(values + offset) - most_value);
    const float score = Fma(v, inverse[1], k * inverse[0]) * 0.5f;
    if (unit == 0.0f) {
      StoreGlobal(scores + offset, score);
      continue;
    }
    uint32_t key;
    memcpy(&key, &score, sizeof(key));
    StoreGlobal(values + offset, score == score ? key + 1 : 0u);
  }
  if (unit == 0.0f) return;
  for (uint32_t first = 0; first < n; first += kLagRankThreads) {
    const uint32_t i = first + threadIdx.x;
    uint32_t key = 0;
    uint32_t place = 0;
    for (uint32_t begin = 0; begin < n; begin += kLagTile) {
      BlockSync();
      const uint32_t m = n - begin < kLagTile ? n - begin : kLagTile;
      for (uint32_t j = threadIdx.x; j < m; j += kLagRankThreads) {
        tile[j] =
            LoadGlobal<uint32_t>(values + uint64_t{begin + j} * sizeof(float));
      }
      if (begin == 0 && i < n) {
        key = LoadGlobal<uint32_t>(values + uint64_t{i} * sizeof(float));
      }
      BlockSync();
      for (uint32_t j = 0; j < m; ++j) {
        place += tile[j] < key || (tile[j] == key && begin + j > i) ? 1 : 0;
      }
    }
    if (i >= n) continue;
    const float score = static_cast<float>(place) * unit;
    StoreGlobal(scores + uint64_t{i} * sizeof(float),
                key == 0 ? ToFloat<kF32>(kNaNBits) : score);
  }
}

// Grid (as lag_spreads, but at least one block, n_kv_heads, n_layers). A block
// ranks a partition, and does its part of the tokens that are not ranked.
KV_KERNEL(lag_ranks, LagParams, kLagRankThreads, 8) {
  const uint32_t head = blockIdx.y;
  const LagLayer& layer = p.layers[blockIdx.z];
  const LagHead tokens(p, layer, head);
  const uint32_t n = tokens.n_tokens;
  const uint32_t n_sink = p.n_sink < n ? p.n_sink : n;
  const uint32_t end = n_sink + tokens.n_ranked * p.partition;
  const float unit = 1.0f / static_cast<float>(n - n_sink);
  for (uint32_t i = blockIdx.x * kLagRankThreads + threadIdx.x;
       i < n - (end - n_sink); i += gridDim.x * kLagRankThreads) {
    const uint32_t slot = i < n_sink ? i : i + (end - n_sink);
    const bool on_ramp = tokens.n_ranked == 0 && i >= n_sink;
    StoreGlobal(tokens.scores + uint64_t{slot} * sizeof(float),
                on_ramp ? static_cast<float>(i - n_sink) * unit : 1.0f);
  }
  if (blockIdx.x >= tokens.n_ranked) return;
  const uint64_t offset =
      (n_sink + uint64_t{blockIdx.x} * p.partition) * sizeof(float);
  LagRank(p.partition, tokens.scores + offset,
          LagScratch(p, 0, blockIdx.z, head) + offset, p.rank_scale);
}

}  // namespace kvevict::cuda
