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

// Grid (n_tokens / kCosineTile of the longest layer, n_kv_heads, n_layers). A
// block compares its rows with tiles of keys from the last one on until every
// row has found a similar one. A thread owns four rows and four columns of a
// tile, and 16 adjacent threads share the rows. 17 KiB shared. Reads a block's
// keys once per tile.
KV_KERNEL(redundancy_search, RedundancyParams, kRedundancyThreads, 2) {
  KV_SHARED(float, row_keys, kTileFloats);
  KV_SHARED(float, column_keys, kTileFloats);
  const RedundancyHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t first_row = blockIdx.x * kCosineTile;
  if (first_row >= my.n_tokens) return;
  const uint32_t my_row = threadIdx.x / 16 * 4;
  const uint32_t my_column = threadIdx.x % 16 * 4;
  bool found[4];
#pragma unroll
  for (uint32_t r = 0; r < 4; ++r) {
    found[r] = first_row + my_row + r >= my.n_tokens;
  }
  uint32_t tile = (my.n_tokens + kCosineTile - 1) / kCosineTile * kCosineTile;
  do {
    tile -= kCosineTile;
    float cosines[4][4] = {};
    MultiplyTiles(
        p.keys, [&](uint32_t i) { return my.DirectionOf(first_row + i); },
        [&](uint32_t i) { return my.DirectionOf(tile + i); }, row_keys,
        column_keys, cosines);
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t row = first_row + my_row + r;
      // The last similar column plus one; 0 if there is none.
      uint32_t mine = 0;
      float entry = 0.0f;
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) {
        const uint32_t column = tile + my_column + c;
        const float cosine = row == column ? 0.0f : cosines[r][c];
        // Column 0 is left out if no other is.
        if (cosine > p.threshold || column == 0) {
          mine = column + 1;
          entry = cosine;
        }
      }
      uint32_t last = mine;
      for (uint32_t mask = 8; mask > 0; mask /= 2) {
        const uint32_t other = ShuffleXor(last, mask);
        last = other > last ? other : last;
      }
      if (last == 0 || found[r]) continue;
      found[r] = true;
      if (mine != last) continue;
      StoreGlobal(my.columns + row * sizeof(uint32_t), last - 1);
      StoreGlobal(my.entries + row * sizeof(float), entry);
    }
  } while (BlockAny(!(found[0] && found[1] && found[2] && found[3])));
}

// Grid (RedundancyChunks() of the longest layer, n_kv_heads, n_layers). A
// thread has a column, and checks what all rows leave out. Reads every key
// once, and 8 bytes per row for each chunk.
KV_KERNEL(redundancy_columns, RedundancyParams, kRedundancyThreads, 2) {
  KV_SHARED(uint32_t, columns, kRedundancyChunk);
  KV_SHARED(float, entries, kRedundancyChunk);
  const RedundancyHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t begin = blockIdx.x * kRedundancyChunk;
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
