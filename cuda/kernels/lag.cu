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

// The work of a block of lag_spreads: partitions [0, n), each by the next one.
struct LagPart {
  const LagRows& rows;
  uint64_t base;  // slot 0, head 0
  uint64_t block_table;
  uint32_t head;
  uint32_t first;      // first slot
  uint32_t partition;  // slots
  uint32_t n;
  uint64_t spreads;  // f32, at slot `first`; sums before the last piece
  uint64_t squares;  // likewise; unused for rows of one piece

  KV_DEVICE CacheRow Row(uint32_t slot) const {
    return FindRow(rows.rows, base, block_table, head, slot);
  }
  // The first slot of partition q.
  KV_DEVICE uint32_t Begin(uint32_t q) const { return first + q * partition; }
};

// Ranges of a piece's channels, in shared memory.
struct LagRanges {
  float* least;     // [kLagWarps, kLagPieceDims]
  float* greatest;  // likewise
  float* base;      // [kLagPieceDims]
  float* scale;     // likewise

  // Joins what all threads found for kLagDims channels each, channel(i) of the
  // piece. Lanes kLagLanes apart have the same channels.
  template <class Channel>
  KV_DEVICE void Join(const float (&low)[kLagDims],
                      const float (&high)[kLagDims],
                      const Channel& channel) const {
#pragma unroll
    for (uint32_t i = 0; i < kLagDims; ++i) {
      const float l = ShuffleXor(low[i], kLagLanes);
      const float h = ShuffleXor(high[i], kLagLanes);
      if (threadIdx.x % 32 >= kLagLanes) continue;
      const uint32_t place = threadIdx.x / 32 * kLagPieceDims + channel(i);
      least[place] = l < low[i] ? l : low[i];
      greatest[place] = h > high[i] ? h : high[i];
    }
    BlockSync();
    if (threadIdx.x < kLagPieceDims) LagRange(least, greatest, base, scale);
    BlockSync();
  }
};

KV_DEVICE void LagWiden(float v, float& low, float& high) {
  low = v < low ? v : low;
  high = v > high ? v : high;
}

// Rows that are loaded from the cache whenever they are needed, by elements.
template <class Tag>
struct LagLoadedRows {
  // Rows of a thread on their way, so that memory stays busy.
  static constexpr uint32_t kAtOnce = Tag::kIsPlain ? 4 : 1;

  const LagPart& part;
  const LagPiece<Tag> channels;

  KV_DEVICE LagLoadedRows(const LagPart& of, uint8_t*, uint32_t piece)
      : part(of), channels{of.rows.rows, piece + threadIdx.x % kLagLanes} {}

  // Channel i of those that Widen() takes.
  KV_DEVICE static uint32_t Channel(uint32_t i) {
    return threadIdx.x % kLagLanes + i * kLagLanes;
  }
  KV_DEVICE void Start() const {}
  // Loads rows r, r + kLagRows, ... of a partition, all at once. Row r stands
  // for those past the end.
  KV_DEVICE void Load(uint32_t q, uint32_t r,
                      float (&x)[kAtOnce][kLagDims]) const {
    CacheRow found[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t at = r + n * kLagRows;
      found[n] = part.Row(part.Begin(q) + (at < part.partition ? at : r));
    }
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) channels.Load(found[n], x[n]);
  }
  // Widens ranges to the thread's rows of partition q.
  KV_DEVICE void Widen(uint32_t q, float (&low)[kLagDims],
                       float (&high)[kLagDims]) const {
    float x[kAtOnce][kLagDims] = {};
    for (uint32_t r = threadIdx.x / kLagLanes; r < part.partition;
         r += kAtOnce * kLagRows) {
      Load(q, r, x);
#pragma unroll
      for (uint32_t n = 0; n < kAtOnce; ++n) {
#pragma unroll
        for (uint32_t k = 0; k < kLagDims; ++k) {
          LagWiden(x[n][k], low[k], high[k]);
        }
      }
    }
  }
  // Gets rows first, first + kLagRows, ... of partition q.
  KV_DEVICE void Get(uint32_t q, uint32_t first,
                     float (&x)[kAtOnce][kLagDims]) const {
    if (first < part.partition) Load(q, first, x);
  }
};

// Rows that are loaded once, 16 bytes at a time, and kept in shared memory: a
// partition and the next one. A row's place is taken by that of the partition
// after these as soon as it has been read. A thread copies parts of the rows
// that it and the other lanes of the row read.
template <class Tag>
struct LagKeptRows {
  static constexpr uint32_t kAtOnce = 4;
  static constexpr uint32_t kLoads = kLagDims / Tag::kPer16;  // of a lane

  const LagPart& part;
  const LagPiece<Tag> channels;
  uint8_t* const memory;  // two partitions
  LagPairs pairs;
  uint32_t first_load;  // of the piece
  uint32_t n_loads;

  KV_DEVICE LagKeptRows(const LagPart& of, uint8_t* shared, uint32_t piece)
      : part(of),
        channels{of.rows.rows, piece + threadIdx.x % kLagLanes},
        memory(shared),
        pairs(LagPairsOf(of.rows.rows)),
        first_load(piece / Tag::kPer16) {
    const uint32_t rest = of.rows.rows.head_dim - piece;
    n_loads = (rest < kLagPieceDims ? rest : kLagPieceDims) / Tag::kPer16;
  }

  KV_DEVICE static uint32_t Channel(uint32_t i) {
    const uint32_t load = threadIdx.x % kLagLanes + i / Tag::kPer16 * kLagLanes;
    return load * Tag::kPer16 + i % Tag::kPer16;
  }
  KV_DEVICE uint8_t* Place(uint32_t q, uint32_t r) const {
    const uint32_t n = part.partition / 2 + part.partition % 2;
    return memory + (q % 2 * n + r / 2) * pairs.bytes +
           r % 2 * pairs.second_row;
  }
  // Starts copying rows first, first + kLagRows, ... of partition q.
  KV_DEVICE void Copy(uint32_t q, uint32_t first) const {
    const CacheRows& rows = part.rows.rows;
    uint64_t from[kAtOnce];
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t r = first + n * kLagRows;
      from[n] = r < part.partition ? part.Row(part.Begin(q) + r).address : 0;
    }
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      if (from[n] == 0) continue;
#pragma unroll
      for (uint32_t j = 0; j < kLoads; ++j) {
        const uint32_t i = threadIdx.x % kLagLanes + j * kLagLanes;
        if (i >= n_loads) continue;
        CopyAsync16(Place(q, first + n * kLagRows) + i * 16,
                    from[n] + uint64_t{first_load + i} * rows.wide, true);
      }
    }
  }
  KV_DEVICE void Start() const {
    for (uint32_t q = 0; q < 2; ++q) {
      for (uint32_t r = threadIdx.x / kLagLanes; r < part.partition;
           r += kAtOnce * kLagRows) {
        Copy(q, r);
      }
    }
  }
  // The thread needs only what it has copied itself. After the barriers of
  // LagRanges::Join() it may read all of its rows.
  KV_DEVICE void Widen(uint32_t q, float (&low)[kLagDims],
                       float (&high)[kLagDims]) const {
    CopyAsyncCommit();
    CopyAsyncWait<0>();
#pragma unroll 4
    for (uint32_t r = threadIdx.x / kLagLanes; r < part.partition;
         r += kLagRows) {
      const auto* const from = reinterpret_cast<const Bytes16*>(Place(q, r));
#pragma unroll
      for (uint32_t j = 0; j < kLoads; ++j) {
        const uint32_t i = threadIdx.x % kLagLanes + j * kLagLanes;
        if (i >= n_loads) continue;
        float v[Tag::kPer16];
        Unpack(Tag(), CacheRow{}, from[i], v);
#pragma unroll
        for (uint32_t e = 0; e < Tag::kPer16; ++e) {
          LagWiden(v[e], low[j * Tag::kPer16 + e], high[j * Tag::kPer16 + e]);
        }
      }
    }
  }
  KV_DEVICE void Get(uint32_t q, uint32_t first,
                     float (&x)[kAtOnce][kLagDims]) const {
#pragma unroll
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t r = first + n * kLagRows;
      const uint8_t* const from = Place(q, r);
#pragma unroll
      for (uint32_t k = 0; k < kLagDims; ++k) {
        if (r >= part.partition || !channels.Has(k)) continue;
        const uint32_t i = threadIdx.x % kLagLanes + k * kLagLanes;
        x[n][k] = ToFloat<Tag::kValue>(
            Tag::kBytes == 4 ? reinterpret_cast<const uint32_t*>(from)[i]
                             : reinterpret_cast<const uint16_t*>(from)[i]);
      }
    }
    WarpSync();  // all lanes have read what is overwritten
    if (q + 2 <= part.n) Copy(q + 2, first);
  }
};

// Stores the sums of row `row` of the part over a piece's channels, or the
// spread after the last piece. By all lanes of the row, which exists or not.
template <class Tag>
KV_DEVICE void LagAddRow(const LagPart& part, const LagPiece<Tag>& channels,
                         const float (&x)[kLagDims],
                         const float (&bases)[kLagDims],
                         const float (&scales)[kLagDims], bool exists,
                         uint32_t row) {
  const uint32_t lane = threadIdx.x % kLagLanes;
  const uint32_t piece = channels.first - lane;
  float sum = 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (uint32_t k = 0; k < kLagDims; ++k) {
    if (!channels.Has(k)) continue;
    const float v = Fma(x[k] - bases[k], scales[k], -0.5f);
    sum += v;
    squares = Fma(v, v, squares);
  }
  sum = SumOverLanes(sum, kLagLanes);
  squares = SumOverLanes(squares, kLagLanes);
  if (!exists || lane != 0) return;
  const uint64_t offset = uint64_t{row} * sizeof(float);
  if (piece > 0) {
    sum = LoadGlobal<float>(part.spreads + offset) + sum;
    squares = LoadGlobal<float>(part.squares + offset) + squares;
  }
  if (part.rows.rows.head_dim - piece <= kLagPieceDims) {
    sum = LagSpread(sum, squares, part.rows);
  } else {
    StoreGlobal(part.squares + offset, squares);
  }
  StoreGlobal(part.spreads + offset, sum);
}

template <class Tag, template <class> class Rows>
KV_DEVICE void LagSpreadsOf(const LagPart& part, const LagRanges& ranges,
                            uint8_t* memory) {
  constexpr uint32_t kAtOnce = Rows<Tag>::kAtOnce;
  const uint32_t lane = threadIdx.x % kLagLanes;
  const uint32_t dim = part.rows.rows.head_dim;
  for (uint32_t piece = 0; piece < dim; piece += kLagPieceDims) {
    const Rows<Tag> rows(part, memory, piece);
    rows.Start();
    for (uint32_t q = 0; q < part.n; ++q) {
      float low[kLagDims], high[kLagDims];
#pragma unroll
      for (uint32_t k = 0; k < kLagDims; ++k) {
        low[k] = ToFloat<kF32>(kInfinityBits);
        high[k] = -low[k];
      }
      rows.Widen(q + 1, low, high);
      ranges.Join(low, high, [](uint32_t i) { return Rows<Tag>::Channel(i); });
      float bases[kLagDims], scales[kLagDims];
#pragma unroll
      for (uint32_t k = 0; k < kLagDims; ++k) {
        bases[k] = ranges.base[lane + k * kLagLanes];
        scales[k] = ranges.scale[lane + k * kLagLanes];
      }
      for (uint32_t first = 0; first < part.partition;
           first += kAtOnce * kLagRows) {
        const uint32_t row = first + threadIdx.x / kLagLanes;
        float x[kAtOnce][kLagDims] = {};
        rows.Get(q, row, x);
#pragma unroll
        for (uint32_t n = 0; n < kAtOnce; ++n) {
          const uint32_t r = row + n * kLagRows;
          LagAddRow(part, rows.channels, x[n], bases, scales,
                    r < part.partition, q * part.partition + r);
        }
      }
    }
  }
}

// Grid (runs of p.run partitions that have one after them, of the longest head,
// n_kv_heads, 2 n_layers: keys, values). 16 lanes share a row, each with every
// 16th channel, whose range the block finds in the next partition. From sm_80
// on, rows with loads of 16 bytes whose partitions fit are kept in dynamic
// shared memory, so that a block reads the rows of its partitions and the next
// once. Other rows are read twice, and a thread has its elements of four of them
// on their way. Writes 4 bytes per row. 9 KiB of static shared memory.
KV_KERNEL(lag_spreads, LagParams, kLagThreads, 2) {
  KV_DYNAMIC_SHARED(memory);
  KV_SHARED(float, least, kLagWarps* kLagPieceDims);
  KV_SHARED(float, greatest, kLagWarps* kLagPieceDims);
  KV_SHARED(float, base, kLagPieceDims);
  KV_SHARED(float, scale, kLagPieceDims);
  const LagRanges ranges{least, greatest, base, scale};
  const uint32_t l = blockIdx.z / 2;
  const uint32_t is_values = blockIdx.z % 2;
  const uint32_t head = blockIdx.y;
  const LagLayer& layer = p.layers[l];
  const LagHead tokens(p, layer, head);
  const uint32_t begin = blockIdx.x * p.run;
  if (begin >= tokens.n_ranked) return;
  const uint32_t rest = tokens.n_ranked - begin;
  const uint32_t first = p.n_sink + begin * p.partition;
  const uint64_t offset = uint64_t{first} * sizeof(float);
  const LagRows& rows = is_values != 0 ? p.values : p.keys;
  const LagPart part{
      rows,
      is_values != 0 ? layer.values : layer.keys,
      layer.block_table,
      head,
      first,
      p.partition,
      p.run < rest ? p.run : rest,
      (is_values != 0 ? LagScratch(p, 0, l, head) : tokens.scores) + offset,
      LagScratch(p, 1 + is_values, l, head) + offset};
  WithDType(rows.rows.dtype, [&](auto tag) {
    using Tag = decltype(tag);
    if constexpr (kArch >= 800 && Tag::kIsPlain) {
      if (rows.is_kept != 0) {
        LagSpreadsOf<Tag, LagKeptRows>(part, ranges, memory);
        return;
      }
    }
    LagSpreadsOf<Tag, LagLoadedRows>(part, ranges, memory);
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

// Grid (partitions that have one after them, of the longest head, but at least
// one block, n_kv_heads, n_layers). A block ranks a partition, and does its part
// of the tokens that are not ranked.
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
