// Keeps blocks whose keys are most unlike, with the choice of
// core/cpu/diversify_blocks.cc and the bits of core/kernels/similarity.h.
//
// similarity_take takes blocks by their keys up to a share of the mass.
// similarity_directions and similarity_sums compute the sum of all keys'
// directions. similarity_rows sums the cosines of each row of the other blocks.
// similarity_keep keeps the blocks that are least alike. All except the first
// ignore lists whose room is used up.
#include "similarity.h"

#include "cache_rows.cuh"
#include "cosines.cuh"
#include "device.cuh"
#include "directions.cuh"
#include "topk.cuh"

namespace kvevict::cuda {

namespace {

constexpr float kInside = 0x1p-23f;
constexpr float kUnits = 0x1p24f;

// The blocks between those that stay at both ends of a list, and their data.
struct VariedList {
  const SimilarityLayer& layer;
  uint32_t list;
  uint32_t size;    // of a block
  uint32_t stride;  // blocks of the longest layer
  uint32_t begin;   // first slot
  uint32_t n_blocks;
  uint32_t n_keep;
  bool higher;
  uint64_t words;   // SimilarityWords()
  uint64_t totals;  // i64 [stride]

  KV_DEVICE VariedList(const SimilarityParams& p, uint32_t l, uint32_t i)
      : layer(p.layers[l]),
        list(i),
        size(p.block),
        stride(p.stride / p.block),
        higher(p.higher_wins != 0) {
    const uint32_t n = layer.n_tokens;
    const uint32_t sink = (p.n_sink + size - 1) / size * size;
    const uint32_t recent = p.n_recent < n ? (n - p.n_recent) / size * size : 0;
    begin = sink < n ? sink : n;
    const uint32_t end = recent > begin ? recent : begin;
    n_blocks = (end - begin) / size;
    const uint32_t n_ends = begin + (n - end);
    n_keep = layer.n_keep > n_ends ? (layer.n_keep - n_ends) / size : 0;
    const uint64_t place = uint64_t{l} * p.n_kv_heads + list;
    words = p.words + place * SimilarityWords(stride) * sizeof(uint32_t);
    totals = p.totals + place * stride * sizeof(int64_t);
  }
  // Whether i comes before j if they are equal.
  KV_DEVICE bool Precedes(uint32_t i, uint32_t j) const {
    return higher ? i > j : i < j;
  }
  KV_DEVICE uint32_t Key(uint32_t block) const {
    return LoadGlobal<uint32_t>(
        layer.select_keys +
        (uint64_t{list} * layer.n_tokens + begin + uint64_t{block} * size) *
            sizeof(uint32_t));
  }
  KV_DEVICE uint64_t Score(uint32_t block) const {
    return layer.scores +
           (uint64_t{list} * layer.n_tokens + begin + uint64_t{block} * size) *
               sizeof(float);
  }
  KV_DEVICE uint64_t LeftAt() const { return words; }
  KV_DEVICE uint64_t OthersAt() const { return words + 4; }
  KV_DEVICE uint64_t MassAt(uint32_t block) const {
    return words + (2 + uint64_t{block}) * 4;
  }
  KV_DEVICE uint64_t TakenAt(uint32_t block) const {
    return MassAt(stride + block);
  }
  KV_DEVICE uint64_t OtherAt(uint32_t i) const { return TakenAt(stride + i); }
  KV_DEVICE uint32_t Left() const { return LoadGlobal<uint32_t>(LeftAt()); }
  KV_DEVICE uint32_t Others() const { return LoadGlobal<uint32_t>(OthersAt()); }
  KV_DEVICE uint32_t Taken(uint32_t block) const {
    return LoadGlobal<uint32_t>(TakenAt(block));
  }
  KV_DEVICE uint32_t Other(uint32_t i) const {
    return LoadGlobal<uint32_t>(OtherAt(i));
  }
  KV_DEVICE float Mass(uint32_t block) const {
    return LoadGlobal<float>(MassAt(block));
  }
};

// One head's keys between both ends of its list, and their scratch.
struct VariedHead : VariedList {
  const CacheRows& keys;
  uint32_t head;
  uint32_t n_tokens;
  uint64_t sums;      // [n_chunks, head_dim]
  uint64_t scales;    // [stride]
  uint64_t row_sums;  // i64 [stride]

  KV_DEVICE VariedHead(const SimilarityParams& p, uint32_t l, uint32_t h)
      : VariedList(p, l, p.n_lists == 1 ? 0 : h), keys(p.keys), head(h) {
    n_tokens = n_blocks * size;
    const uint64_t place = uint64_t{l} * p.n_kv_heads + h;
    sums = p.sums + place * p.n_chunks * p.keys.head_dim * sizeof(float);
    scales = p.scales + place * p.stride * sizeof(float);
    row_sums = p.row_sums + place * p.stride * sizeof(int64_t);
  }
  // Token i between the ends.
  KV_DEVICE CacheRow Row(uint32_t i) const {
    return i < n_tokens
               ? FindRow(keys, layer.keys, layer.block_table, head, begin + i)
               : CacheRow{};
  }
  // The direction of row i of the other blocks, which have n_rows.
  KV_DEVICE Direction DirectionOf(uint32_t i, uint32_t n_rows) const {
    if (i >= n_rows) return {{}, 0.0f};
    const uint32_t token = Other(i / size) * size + i % size;
    return {Row(token),
            LoadGlobal<float>(scales + uint64_t{token} * sizeof(float))};
  }
};

}  // namespace

// Grid (n_lists, n_layers). A thread has every 256th block of a list. Reads the
// list's scores once, and every block's key and mass as often as there are
// blocks.
KV_KERNEL(similarity_take, SimilarityParams, kSimilarityThreads, 2) {
  const VariedList my(p, blockIdx.y, blockIdx.x);
  for (uint32_t k = threadIdx.x; k < my.n_blocks; k += kSimilarityThreads) {
    const uint64_t scores = my.Score(k);
    float mass = 0.0f;
    for (uint32_t i = 0; i < my.size; ++i) {
      const float score = LoadGlobal<float>(scores + uint64_t{i} * 4);
      const bool is_finite = score - score == 0.0f;
      mass += is_finite ? score : 0.0f;
    }
    StoreGlobal(my.MassAt(k), mass);
  }
  BlockSync();
  float total = 0.0f;
  for (uint32_t k = 0; k < my.n_blocks; ++k) total += my.Mass(k);
  const float limit = p.mass * total;
  for (uint32_t k = threadIdx.x; k < my.n_blocks; k += kSimilarityThreads) {
    const uint32_t key = my.Key(k);
    uint32_t rank = 0;
    float before = 0.0f;
    for (uint32_t j = 0; j < my.n_blocks; ++j) {
      const uint32_t other = my.Key(j);
      if (other < key || (other == key && !my.Precedes(j, k))) continue;
      ++rank;
      before += my.Mass(j);
    }
    const bool is_taken =
        key == kForcedKey || (rank < my.n_keep && before < limit);
    StoreGlobal(my.TakenAt(k), static_cast<uint32_t>(is_taken));
  }
  BlockSync();
  for (uint32_t k = threadIdx.x; k < my.n_blocks; k += kSimilarityThreads) {
    if (my.Taken(k) != 0) continue;
    uint32_t place = 0;
    for (uint32_t j = 0; j < k; ++j) place += my.Taken(j) == 0;
    StoreGlobal(my.OtherAt(place), k);
  }
  if (threadIdx.x != 0) return;
  uint32_t n_taken = 0;
  for (uint32_t k = 0; k < my.n_blocks; ++k) n_taken += my.Taken(k);
  StoreGlobal(my.LeftAt(), my.n_keep > n_taken ? my.n_keep - n_taken : 0u);
  StoreGlobal(my.OthersAt(), my.n_blocks - n_taken);
}

// Grid (tokens of the longest layer / kSimilarityChunk, n_kv_heads, n_layers).
// Reads every key twice, the second time from a cache. 3 KiB shared.
KV_KERNEL(similarity_directions, SimilarityParams, kSimilarityThreads, 4) {
  KV_SHARED(CacheRow, rows, kSimilarityChunk);
  KV_SHARED(float, row_scales, kSimilarityChunk);
  const VariedHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t first = blockIdx.x * kSimilarityChunk;
  if (first >= my.n_tokens || my.Left() == 0) return;
  const uint32_t i = first + threadIdx.x;
  const uint32_t n = my.n_tokens - first < kSimilarityChunk
                         ? my.n_tokens - first
                         : kSimilarityChunk;
  FindDirections<kSimilarityThreads>(
      p.keys, my.Row(i), n, my.scales + uint64_t{i} * sizeof(float),
      my.sums + uint64_t{blockIdx.x} * p.keys.head_dim * sizeof(float),
      [](float square) {
        const float norm = SquareRoot(square + kInside);
        return norm < ToFloat<kF32>(kInfinityBits) ? 1.0f / norm : 0.0f;
      },
      rows, row_scales);
}

// Grid (head_dim / kSimilarityThreads, n_kv_heads, n_layers). A thread has an
// element.
KV_KERNEL(similarity_sums, SimilarityParams, kSimilarityThreads, 1) {
  const VariedHead my(p, blockIdx.z, blockIdx.y);
  const uint32_t i = blockIdx.x * kSimilarityThreads + threadIdx.x;
  if (i >= p.keys.head_dim || my.n_tokens == 0 || my.Left() == 0) return;
  AddChunks(my.sums + uint64_t{i} * sizeof(float),
            (my.n_tokens - 1) / kSimilarityChunk + 1,
            uint64_t{p.keys.head_dim} * sizeof(float));
}

// Grid (tiles of the longest layer from p.first_tile on, n_kv_heads, n_layers).
// A block multiplies its rows of the other blocks with tiles of all of them. A
// thread owns four rows and four columns of a tile, and 16 adjacent threads
// share the rows. 17 KiB shared. Reads a block's keys once per tile.
KV_KERNEL(similarity_rows, SimilarityParams, kSimilarityThreads, 2) {
  KV_SHARED(float, row_keys, kTileFloats);
  KV_SHARED(float, column_keys, kTileFloats);
  KV_SHARED(float, means, kCosineTile);
  const VariedHead my(p, blockIdx.z, blockIdx.y);
  if (my.Left() == 0) return;
  const uint32_t n_rows = my.Others() * my.size;
  const uint32_t first_row = (p.first_tile + blockIdx.x) * kCosineTile;
  if (first_row >= n_rows) return;
  const uint32_t my_row = threadIdx.x / 16 * 4;
  const uint32_t my_column = threadIdx.x % 16 * 4;
  if (threadIdx.x < kCosineTile) {
    const Direction mine = my.DirectionOf(first_row + threadIdx.x, n_rows);
    float dot = 0.0f;
    float square = 0.0f;
    VisitRow(p.keys, mine.scale == 0.0f ? CacheRow{} : mine.row,
             [&](uint32_t i, float v) {
               const float u = v * mine.scale;
               dot = Fma(
                   u, LoadGlobal<float>(my.sums + uint64_t{i} * sizeof(float)),
                   dot);
               square = Fma(u, u, square);
             });
    means[threadIdx.x] = (dot - square) / static_cast<float>(my.n_tokens);
  }
  int64_t sums[4] = {};
  for (uint32_t tile = 0; tile < n_rows; tile += kCosineTile) {
    float cosines[4][4] = {};
    MultiplyTiles(
        p.keys,
        [&](uint32_t i) { return my.DirectionOf(first_row + i, n_rows); },
        [&](uint32_t i) { return my.DirectionOf(tile + i, n_rows); }, row_keys,
        column_keys, cosines);
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) {
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) {
        const bool counts = first_row + my_row + r != tile + my_column + c &&
                            cosines[r][c] >= means[my_row + r];
        sums[r] += counts ? static_cast<int32_t>(cosines[r][c] * kUnits) : 0;
      }
    }
  }
#pragma unroll
  for (uint32_t r = 0; r < 4; ++r) {
    for (uint32_t mask = 8; mask > 0; mask /= 2) {
      const auto bits = static_cast<uint64_t>(sums[r]);
      const uint32_t low = ShuffleXor(static_cast<uint32_t>(bits), mask);
      const uint32_t high = ShuffleXor(static_cast<uint32_t>(bits >> 32), mask);
      sums[r] += static_cast<int64_t>(uint64_t{high} << 32 | low);
    }
    const uint32_t row = first_row + my_row + r;
    if (my_column != 0 || row >= n_rows) continue;
    StoreGlobal(my.row_sums + uint64_t{row} * sizeof(int64_t), sums[r]);
  }
}

// Grid (n_lists, n_layers). A thread has every 256th block of a list. Reads the
// sums of all rows once, and the total of every other block as often as there
// are other blocks.
KV_KERNEL(similarity_keep, SimilarityParams, kSimilarityThreads, 2) {
  const VariedList my(p, blockIdx.y, blockIdx.x);
  const uint32_t n_left = my.Left();
  if (n_left == 0) return;
  const uint32_t n_others = my.Others();
  const uint32_t first_head = p.n_lists == 1 ? 0 : my.list;
  const uint32_t n_heads = p.n_lists == 1 ? p.n_kv_heads : 1;
  for (uint32_t k = threadIdx.x; k < n_others; k += kSimilarityThreads) {
    int64_t total = 0;
    for (uint32_t h = 0; h < n_heads; ++h) {
      const VariedHead head(p, blockIdx.y, first_head + h);
      for (uint32_t i = 0; i < my.size; ++i) {
        total += LoadGlobal<int64_t>(
            head.row_sums + (uint64_t{k} * my.size + i) * sizeof(int64_t));
      }
    }
    StoreGlobal(my.totals + uint64_t{k} * sizeof(int64_t), total);
  }
  BlockSync();
  const auto write = [&](uint32_t block, bool stays) {
    const uint64_t scores = my.Score(block);
    for (uint32_t i = 0; i < my.size; ++i) {
      StoreGlobal(scores + uint64_t{i} * sizeof(float),
                  stays ? kInfinityBits : kNaNBits);
    }
  };
  for (uint32_t k = threadIdx.x; k < my.n_blocks; k += kSimilarityThreads) {
    if (my.Taken(k) != 0) write(k, true);
  }
  for (uint32_t k = threadIdx.x; k < n_others; k += kSimilarityThreads) {
    const auto total_of = [&](uint32_t i) {
      return LoadGlobal<int64_t>(my.totals + uint64_t{i} * sizeof(int64_t));
    };
    const int64_t own = total_of(k);
    uint32_t rank = 0;
    for (uint32_t j = 0; j < n_others; ++j) {
      const int64_t other = total_of(j);
      rank += other < own || (other == own && my.Precedes(j, k));
    }
    write(my.Other(k), rank < n_left);
  }
}

}  // namespace kvevict::cuda
