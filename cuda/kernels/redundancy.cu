// Subtracts the redundancy of keys from their scores; see
// core/kernels/redundancy.h. The bits are the same as there on targets with a
// fused multiply-add: every sum is added in the same order.
//
// redundancy_directions computes the scales that turn keys into directions and
// adds those of a chunk of tokens; redundancy_sums adds the chunks.
// redundancy_search finds the entry that each row leaves out, and
// redundancy_columns sums the columns. redundancy_mix computes the softmax of
// their means and subtracts it.
#include "redundancy.h"

#include "cache_rows.cuh"
#include "cosines.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "directions.cuh"
#include "exp2.cuh"
#include "near_cosines.cuh"

namespace kvevict::cuda {

namespace {

constexpr float kPlus = 1e-8f;  // added to a norm before dividing by it
constexpr float kUnits = 4294967296.0f;  // fixed-point units of an entry
constexpr float kLog2E = 1.44269504088896340736f;

// One head's keys and its scratch.
struct RedundancyHead {
  const RedundancyLayer& layer;
  const CacheRows& keys;
  uint32_t head;
  uint32_t n_tokens;
  uint64_t sums;     // [n_chunks, head_dim]
  uint64_t scales;   // [stride]
  uint64_t columns;  // [stride]
  uint64_t entries;  // [stride]

  KV_DEVICE RedundancyHead(const RedundancyParams& p, uint32_t l, uint32_t h)
      : layer(p.layers[l]), keys(p.keys), head(h) {
    n_tokens = CountOf(p.tokens, layer.first_count, h, layer.n_tokens);
    const uint64_t place = uint64_t{l} * p.n_kv_heads + h;
    sums = p.sums + place * p.n_chunks * p.keys.head_dim * sizeof(float);
    scales = p.rows + place * 3 * p.stride * sizeof(float);
    columns = scales + uint64_t{p.stride} * sizeof(float);
    entries = columns + uint64_t{p.stride} * sizeof(float);
  }
  // Missing past the last one.
  KV_DEVICE CacheRow Row(uint32_t slot) const {
    return slot < n_tokens
               ? FindRow(keys, layer.keys, layer.block_table, head, slot)
               : CacheRow{};
  }
  KV_DEVICE float ScaleOf(uint32_t slot) const {
    return slot < n_tokens ? LoadGlobal<float>(scales + slot * sizeof(float))
                           : 0.0f;
  }
  KV_DEVICE Direction DirectionOf(uint32_t slot) const {
    return {Row(slot), ScaleOf(slot)};
  }
};

}  // namespace

// Grid (RedundancyChunks() of the longest layer, n_kv_heads, n_layers). A
// thread computes a row's norm, and then adds one element of all rows of the
// chunk. Reads every key twice, the second time from a cache.
KV_KERNEL(redundancy_directions, RedundancyParams, kRedundancyThreads, 4) {
  KV_SHARED(CacheRow, rows, kRedundancyChunk);
  KV_SHARED(float, row_scales, kRedundancyChunk);
  const RedundancyHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t begin = blockIdx.x * kRedundancyChunk;
  if (begin >= my.n_tokens) return;
  const uint32_t slot = begin + threadIdx.x;
  const uint32_t n = my.n_tokens - begin < kRedundancyChunk
                         ? my.n_tokens - begin
                         : kRedundancyChunk;
  FindDirections<kRedundancyThreads>(
      p.keys, my.Row(slot), n, my.scales + slot * sizeof(float),
      my.sums + uint64_t{blockIdx.x} * p.keys.head_dim * sizeof(float),
      [](float square) {
        const float norm = SquareRoot(square);
        return norm < ToFloat<kF32>(kInfinityBits) ? 1.0f / (norm + kPlus)
                                                   : 0.0f;
      },
      rows, row_scales);
}

// Grid (head_dim / kRedundancyThreads, n_kv_heads, n_layers). A thread has an
// element. The first chunk's sums become those of all chunks.
KV_KERNEL(redundancy_sums, RedundancyParams, kRedundancyThreads, 1) {
  const RedundancyHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t i = blockIdx.x * kRedundancyThreads + threadIdx.x;
  const uint32_t n_chunks = RedundancyChunks(my.n_tokens);
  if (i >= p.keys.head_dim || n_chunks == 0) return;
  AddChunks(my.sums + uint64_t{i} * sizeof(float), n_chunks,
            uint64_t{p.keys.head_dim} * sizeof(float));
}

namespace {

// The rows of a block, and which of them have found what they leave out.
struct RedundancyRows {
  const RedundancyHead& my;
  float threshold;
  uint32_t first;
  uint32_t* is_found;  // [kCosineTile], shared
  uint32_t* n_left;    // shared

  KV_DEVICE Direction DirectionOf(uint32_t row) const {
    return my.DirectionOf(first + row);
  }
  KV_DEVICE void Store(uint32_t row, uint32_t column, float entry) const {
    const uint64_t offset = uint64_t{first + row} * sizeof(float);
    StoreGlobal(my.columns + offset, column);
    StoreGlobal(my.entries + offset, entry);
  }
  // By one thread of a row.
  KV_DEVICE void Find(uint32_t row, uint32_t column, float entry) const {
    if (is_found[row] != 0) return;
    is_found[row] = 1;
    AtomicAddShared(n_left, 0u - 1);
    Store(row, column, entry);
  }

  // Compares the rows with all keys of a tile. A thread owns four rows and four
  // columns, and 16 adjacent threads share the rows.
  KV_DEVICE void FindAmongAll(uint32_t tile, float* tiles) const {
    const uint32_t my_row = threadIdx.x / 16 * 4;
    const uint32_t my_column = threadIdx.x % 16 * 4;
    float cosines[4][4] = {};
    MultiplyTiles(
        my.keys, [&](uint32_t i) { return DirectionOf(i); },
        [&](uint32_t i) { return my.DirectionOf(tile + i); }, tiles,
        tiles + kTileFloats, cosines);
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
      // The last similar column plus one; 0 if there is none.
      uint32_t mine = 0;
      float entry = 0.0f;
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) {
        const uint32_t column = tile + my_column + c;
        if (cosines[r][c] > threshold && first + my_row + r != column) {
          mine = column + 1;
          entry = cosines[r][c];
        }
      }
      uint32_t last = mine;
      for (uint32_t mask = 8; mask > 0; mask /= 2) {
        const uint32_t other = ShuffleXor(last, mask);
        last = other > last ? other : last;
      }
      if (last != 0 && mine == last) Find(my_row + r, last - 1, entry);
    }
  }

  // Compares the rows with those keys that they are near to. Four threads have
  // a row.
  KV_DEVICE void FindAmong(NearPairs& near, uint32_t n_pairs) const {
    near.Compute(
        my.keys, n_pairs, [&](uint32_t i) { return DirectionOf(i); },
        [&](uint32_t i) { return my.DirectionOf(i); });
    const uint32_t row = threadIdx.x / 4;
    uint32_t mine = 0;
    float entry = 0.0f;
    for (uint32_t i = threadIdx.x % 4; i < n_pairs; i += 4) {
      if (near.rows[i] != row || !(near.cosines[i] > threshold)) continue;
      if (near.columns[i] < mine) continue;
      mine = near.columns[i] + 1;
      entry = near.cosines[i];
    }
    uint32_t last = mine;
    for (uint32_t mask = 2; mask > 0; mask /= 2) {
      const uint32_t other = ShuffleXor(last, mask);
      last = other > last ? other : last;
    }
    if (last != 0 && mine == last) Find(row, last - 1, entry);
  }

  // Compares the rows with tiles of keys from the last one on. Near pairs wait
  // until there are many, or every row that is left has one. If there is no
  // room for those of a tile, the rows are compared with all of its keys.
  KV_DEVICE void FindByFilter(uint32_t tile, float* tiles) const {
    KV_SHARED(NearPairs, pairs, 1);
    KV_SHARED(uint32_t, n_near, kCosineTile);  // pairs of a row
    KV_SHARED(uint32_t, n_without, 1);         // rows left without one
    NearPairs& near = *pairs;
    const float limit = threshold - CosineError(my.keys.head_dim);
    uint32_t n_waiting = 0;
    bool has_rows = false;
    const auto forget = [&] {
      if (threadIdx.x == 0) *n_without = *n_left;
      if (threadIdx.x < kCosineTile) n_near[threadIdx.x] = 0;
      n_waiting = 0;
    };
    if (threadIdx.x == 0) near.n = 0;
    forget();
    do {
      tile -= kCosineTile;
      NearCosines products;
      near.MultiplyHalves(
          my.keys, [&](uint32_t i) { return DirectionOf(i); },
          [&](uint32_t i) { return my.DirectionOf(tile + i); }, has_rows,
          reinterpret_cast<uint8_t*>(tiles), &products);
      has_rows = true;
      near.Add(products, tile,
               [&](uint32_t row, uint32_t column, float cosine) {
                 const bool is_near = cosine > limit && is_found[row] == 0 &&
                                      first + row != tile + column;
                 if (is_near && AtomicAddShared(&n_near[row], 1) == 0) {
                   AtomicAddShared(n_without, 0u - 1);
                 }
                 return is_near;
               });
      BlockSync();
      const uint32_t n = near.n;
      if (n < kMostPairs / 2 && *n_without != 0 && tile > 0) {
        n_waiting = n;
        continue;
      }
      const bool fits = n <= kMostPairs;
      FindAmong(near, fits ? n : n_waiting);
      if (!fits) FindAmongAll(tile, tiles);
      BlockSync();
      forget();
    } while (*n_left != 0 && tile > 0);
  }
};

}  // namespace

// Grid (kCosineTile rows of the longest layer from p.first_tile on, n_kv_heads,
// n_layers). A block compares its rows with tiles of keys from the last one on
// until every row has found a similar one. From sm_80 on it computes only the
// cosines near the threshold and above, unless there are many. 38 KiB shared.
// Reads a block's keys once per tile.
KV_KERNEL(redundancy_search, RedundancyParams, kRedundancyThreads, 2) {
  KV_SHARED(float, tiles, 2 * kTileFloats);
  KV_SHARED(uint32_t, is_found, kCosineTile);
  KV_SHARED(uint32_t, n_left, 1);
  const RedundancyHead my(p, blockIdx.z, blockIdx.y);
  const RedundancyRows rows{my, p.threshold,
                            (p.first_tile + blockIdx.x) * kCosineTile, is_found,
                            n_left};
  if (rows.first >= my.n_tokens) return;
  const uint32_t n_rows = my.n_tokens - rows.first;
  if (threadIdx.x < kCosineTile) is_found[threadIdx.x] = threadIdx.x >= n_rows;
  if (threadIdx.x == 0) *n_left = n_rows < kCosineTile ? n_rows : kCosineTile;
  uint32_t tile = (my.n_tokens + kCosineTile - 1) / kCosineTile * kCosineTile;
  if constexpr (kFiltersCosines) {
    rows.FindByFilter(tile, tiles);
  } else {
    do {
      tile -= kCosineTile;
      rows.FindAmongAll(tile, tiles);
      BlockSync();
    } while (*n_left != 0 && tile > 0);
  }
  // No key is similar: column 0, whose entry is 0 for itself.
  if (threadIdx.x >= kCosineTile || is_found[threadIdx.x] != 0) return;
  const bool is_first = rows.first + threadIdx.x == 0;
  rows.Store(threadIdx.x, 0,
             is_first ? 0.0f
                      : CosineOf(my.keys, rows.DirectionOf(threadIdx.x),
                                 my.DirectionOf(0)));
}

// Grid (chunks of the longest layer from p.first_tile on, n_kv_heads, n_layers).
// A thread has a column, and checks what all rows leave out. Reads every key
// once, and 8 bytes per row for each chunk.
KV_KERNEL(redundancy_columns, RedundancyParams, kRedundancyThreads, 2) {
  KV_SHARED(uint32_t, columns, kRedundancyChunk);
  KV_SHARED(float, entries, kRedundancyChunk);
  const RedundancyHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t begin = (p.first_tile + blockIdx.x) * kRedundancyChunk;
  if (begin >= my.n_tokens) return;
  const uint32_t column = begin + threadIdx.x;
  const float scale = my.ScaleOf(column);
  float dot = 0.0f;
  float square = 0.0f;
  VisitRow(p.keys, scale == 0.0f ? CacheRow{} : my.Row(column),
           [&](uint32_t i, float v) {
             const float u = v * scale;
             dot = Fma(u,
                       LoadGlobal<float>(my.sums + uint64_t{i} * sizeof(float)),
                       dot);
             square = Fma(u, u, square);
           });
  int64_t left_out = 0;
  for (uint32_t first = 0; first < my.n_tokens; first += kRedundancyChunk) {
    const uint32_t row = first + threadIdx.x;
    const bool is_row = row < my.n_tokens;
    BlockSync();  // all have read what is overwritten
    columns[threadIdx.x] =
        is_row ? LoadGlobal<uint32_t>(my.columns + row * sizeof(uint32_t))
               : 0xffffffffu;
    entries[threadIdx.x] =
        is_row ? LoadGlobal<float>(my.entries + row * sizeof(float)) : 0.0f;
    BlockSync();
#pragma unroll 8
    for (uint32_t r = 0; r < kRedundancyChunk; ++r) {
      if (columns[r] == column) {
        left_out += static_cast<int64_t>(entries[r] * kUnits);
      }
    }
  }
  if (column >= my.n_tokens) return;
  const float others = dot - square;
  const float entry = static_cast<float>(left_out) * (1.0f / kUnits);
  StoreGlobal(my.scales + column * sizeof(float),
              scale == 0.0f ? ToFloat<kF32>(kNaNBits) : others - entry);
}

namespace {

// Combines the values of a block's threads: i and i + half, then the same with
// half of half, and so on. Between two calls with the same memory there must be
// one with other memory.
template <class T, class Combine>
KV_DEVICE T OverThreads(T v, T* shared, const Combine& combine) {
  shared[threadIdx.x] = v;
  BlockSync();
  for (uint32_t half = kRedundancyThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] =
          combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    BlockSync();
  }
  return shared[0];
}

}  // namespace

// Grid (n_kv_heads, n_layers). A block has a head. Reads its columns three
// times and its scores once, and writes the scores.
KV_KERNEL(redundancy_mix, RedundancyParams, kRedundancyThreads, 1) {
  KV_SHARED(float, floats, kRedundancyThreads);
  KV_SHARED(uint32_t, counts, kRedundancyThreads);
  const RedundancyHead my(p, blockIdx.y, blockIdx.x);
  const auto column = [&](uint32_t i) {
    return LoadGlobal<float>(my.scales + uint64_t{i} * sizeof(float));
  };
  float most = -ToFloat<kF32>(kInfinityBits);
  uint32_t n_good = 0;
  for (uint32_t i = threadIdx.x; i < my.n_tokens; i += kRedundancyThreads) {
    const float v = column(i);
    most = v > most ? v : most;
    n_good += v == v;
  }
  most =
      OverThreads(most, floats, [](float a, float b) { return b > a ? b : a; });
  n_good =
      OverThreads(n_good, counts, [](uint32_t a, uint32_t b) { return a + b; });
  const float count = static_cast<float>(n_good);
  const float most_mean = most / count;
  const auto exponential = [&](uint32_t i) {
    return SameExp2((column(i) / count - most_mean) * kLog2E);
  };
  float sum = 0.0f;
  for (uint32_t i = threadIdx.x; i < my.n_tokens; i += kRedundancyThreads) {
    const float e = exponential(i);
    sum += e == e ? e : 0.0f;
  }
  sum = OverThreads(sum, floats, [](float a, float b) { return a + b; });
  const uint64_t scores =
      my.layer.scores + uint64_t{my.head} * my.layer.n_tokens * sizeof(float);
  for (uint32_t i = threadIdx.x; i < my.n_tokens; i += kRedundancyThreads) {
    const uint64_t at = scores + uint64_t{i} * sizeof(float);
    const float score = LoadGlobal<float>(at);
    const float off = p.weight * (exponential(i) / sum);
    if (score == ToFloat<kF32>(kInfinityBits)) continue;
    StoreGlobal(at, Fma(p.score_weight, score, -off));
  }
}

}  // namespace kvevict::cuda
