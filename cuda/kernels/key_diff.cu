// Compares keys with their mean direction, by negative cosines: the least
// similar ranks first.
//
// key_sums adds up the directions of each chunk of tokens, add_key_sums those
// of the chunks, and key_diffs compares. The order of all sums depends only on
// the shape of a row and the tokens of its head.
#include "key_diff.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "key_direction.cuh"
#include "row_products.cuh"

namespace kvevict::cuda {

namespace {

// The sums of a head's chunk. Those of the first chunk become the head's.
KV_DEVICE uint64_t SumsOf(const KeyDiffParams& p, uint32_t layer, uint32_t head,
                          uint32_t chunk) {
  const uint64_t row =
      (uint64_t{layer} * p.n_kv_heads + head) * p.n_chunks + chunk;
  return p.sums + row * p.keys.head_dim * sizeof(float);
}

// The tokens of a block of key_sums.
struct Chunk {
  const KeyDiffLayer& layer;
  uint32_t head;
  uint32_t begin;
  uint32_t end;
  uint64_t sums;  // out
};

KV_DEVICE CacheRow RowOf(const KeyDiffParams& p, const Chunk& chunk,
                         uint32_t slot) {
  return slot < chunk.end ? FindRow(p.keys, chunk.layer.keys,
                                    chunk.layer.block_table, chunk.head, slot)
                          : CacheRow{};
}

// For rows of which every lane has at most 16 bytes. Each thread adds up its
// elements of its rows in registers; then threads with the same elements add
// theirs.
template <class Tag>
KV_DEVICE void AddShortRows(Tag tag, const KeyDiffParams& p, const Chunk& chunk,
                            float* shared) {
  const uint32_t lanes = p.keys.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const uint32_t group = threadIdx.x / lanes;
  const uint32_t n_groups = kDiffThreads / lanes;
  const bool has_part = lane * Tag::kPer16 < p.keys.head_dim;
  float sums[Tag::kPer16] = {};
  for (uint32_t first = chunk.begin + group; first - group < chunk.end;
       first += n_groups * kDiffRows) {
    Bytes16 words[kDiffRows];
#pragma unroll
    for (uint32_t r = 0; r < kDiffRows; ++r) {
      const uint64_t row = RowOf(p, chunk, first + r * n_groups).address;
      words[r] = row != 0 && has_part
                     ? LoadGlobal<Bytes16>(row + uint64_t{lane} * p.keys.wide)
                     : Bytes16{};
    }
#pragma unroll
    for (uint32_t r = 0; r < kDiffRows; ++r) {
      float v[Tag::kPer16];
      Unpack(tag, CacheRow{}, words[r], v);
      float square = 0.0f;
#pragma unroll
      for (uint32_t j = 0; j < Tag::kPer16; ++j) {
        square = Fma(v[j], v[j], square);
      }
      const float norm = SquareRoot(SumOverLanes(square, lanes));
      if (!HasDirection(norm)) continue;
      const float scale = 1.0f / AtLeast(norm, kLeastNorm);
#pragma unroll
      for (uint32_t j = 0; j < Tag::kPer16; ++j) {
        sums[j] = Fma(v[j], scale, sums[j]);
      }
    }
  }
  const uint32_t row_floats = lanes * Tag::kPer16;
#pragma unroll
  for (uint32_t j = 0; j < Tag::kPer16; ++j) {
    shared[group * row_floats + lane * Tag::kPer16 + j] = sums[j];
  }
  BlockSync();
  if (threadIdx.x >= p.keys.head_dim) return;
  float sum = 0.0f;
  for (uint32_t g = 0; g < n_groups; ++g) {
    sum += shared[g * row_floats + threadIdx.x];
  }
  StoreGlobal(chunk.sums + threadIdx.x * sizeof(float), sum);
}

// For any rows: first computes norms, then each thread adds some elements of
// all rows. Reads them twice, the second time from a cache.
template <class Tag>
KV_DEVICE void AddRows(Tag tag, const KeyDiffParams& p, const Chunk& chunk,
                       CacheRow* rows, float* scales) {
  const uint32_t lanes = p.keys.lanes;
  const uint32_t group = threadIdx.x / lanes;
  const uint32_t n_groups = kDiffThreads / lanes;
  for (uint32_t first = group; first - group < kDiffChunk;
       first += n_groups * kDiffRows) {
    CacheRow found[kDiffRows];
    float squares[kDiffRows] = {};
#pragma unroll
    for (uint32_t r = 0; r < kDiffRows; ++r) {
      found[r] = RowOf(p, chunk, chunk.begin + first + r * n_groups);
    }
    VisitRows(p.keys, found, threadIdx.x % lanes,
              [&](uint32_t r, uint32_t, float v) {
                squares[r] = Fma(v, v, squares[r]);
              });
#pragma unroll
    for (uint32_t r = 0; r < kDiffRows; ++r) {
      const float norm = SquareRoot(SumOverLanes(squares[r], lanes));
      const uint32_t i = first + r * n_groups;
      if (threadIdx.x % lanes != 0 || i >= kDiffChunk) continue;
      rows[i] = HasDirection(norm) ? found[r] : CacheRow{};
      scales[i] = 1.0f / AtLeast(norm, kLeastNorm);
    }
  }
  BlockSync();
  const uint32_t n = chunk.end - chunk.begin;
  for (uint32_t i = threadIdx.x; i < p.keys.head_dim; i += kDiffThreads) {
    const ElementPlace place = FindElement(tag, p.keys, i);
    float sum = 0.0f;
    for (uint32_t t = 0; t < n; t += kDiffRows) {
      float v[kDiffRows];
#pragma unroll
      for (uint32_t r = 0; r < kDiffRows; ++r) {
        const CacheRow& row = rows[t + r];
        v[r] = row.address == 0 ? 0.0f : LoadElement(tag, p.keys, row, place);
      }
#pragma unroll
      for (uint32_t r = 0; r < kDiffRows; ++r) {
        sum = Fma(v[r], scales[t + r], sum);
      }
    }
    StoreGlobal(chunk.sums + uint64_t{i} * sizeof(float), sum);
  }
}

}  // namespace

// Grid (KeyDiffChunks() of the longest layer, n_kv_heads, n_layers), 11 KiB
// shared. Reads every key once, and those that are longer than 512 bytes or not
// packed again from a cache. Writes 4 * head_dim bytes per chunk.
KV_KERNEL(key_sums, KeyDiffParams, kDiffThreads, 4) {
  KV_SHARED(float, shared, kDiffThreads * 8);
  KV_SHARED(CacheRow, rows, kDiffChunk);
  KV_SHARED(float, scales, kDiffChunk);
  const KeyDiffLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t begin = blockIdx.x * kDiffChunk;
  if (begin >= n_tokens) return;
  const uint32_t end =
      n_tokens - begin < kDiffChunk ? n_tokens : begin + kDiffChunk;
  const Chunk chunk = {layer, head, begin, end,
                       SumsOf(p, blockIdx.z, head, blockIdx.x)};
  WithDType(p.keys.dtype, [&](auto tag) {
    // Codes have up to 512 elements in as many bytes, which are more than there
    // are threads.
    using Tag = decltype(tag);
    if (Tag::kIsPlain && p.keys.wide != 0 &&
        p.keys.head_dim <= p.keys.lanes * Tag::kPer16) {
      AddShortRows(tag, p, chunk, shared);
    } else {
      AddRows(tag, p, chunk, rows, scales);
    }
  });
}

// Grid (head_dim / kDiffColumns, n_kv_heads, n_layers). kDiffSlices threads
// share an element, and each takes every kDiffSlices-th chunk. Reads all sums
// once.
KV_KERNEL(add_key_sums, KeyDiffParams, kDiffThreads, 4) {
  KV_SHARED(float, shared, kDiffThreads);
  const KeyDiffLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_chunks =
      KeyDiffChunks(CountOf(p.tokens, layer.first_count, head, layer.n_tokens));
  const uint32_t slice = threadIdx.x / kDiffColumns;
  const uint32_t column =
      blockIdx.x * kDiffColumns + threadIdx.x % kDiffColumns;
  const uint64_t at = SumsOf(p, blockIdx.z, head, 0) + column * sizeof(float);
  const uint64_t step = uint64_t{p.keys.head_dim} * sizeof(float);
  const bool has_column = column < p.keys.head_dim;
  float sum = 0.0f;
  if (has_column) {
#pragma unroll 4
    for (uint32_t c = slice; c < n_chunks; c += kDiffSlices) {
      sum += LoadGlobal<float>(at + c * step);
    }
  }
  shared[threadIdx.x] = sum;
  BlockSync();
  if (slice != 0 || !has_column || n_chunks == 0) return;
#pragma unroll
  for (uint32_t s = 1; s < kDiffSlices; ++s) {
    sum += shared[s * kDiffColumns + threadIdx.x];
  }
  StoreGlobal(at, sum);
}

// Grid (n_tokens / KeyDiffBlockRows() of the longest layer, n_kv_heads,
// n_layers). p.keys.lanes threads share a row, and each has its part of
// kDiffRows rows. Reads every key once and writes 4 bytes per key.
KV_KERNEL(key_diffs, KeyDiffParams, kDiffThreads,
          ((kDTypesOfRows >> kU4 | kDTypesOfRows >> kE4M3) & 1) ? 2
          : kReadsQuantized                                     ? 3
                                                                : 4) {
  const KeyDiffLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lanes = p.keys.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const uint32_t step = kDiffThreads / lanes;
  const uint32_t first = blockIdx.x * (step * kDiffRows) + threadIdx.x / lanes;
  CacheRow rows[kDiffRows];
  float dots[kDiffRows] = {};
  float squares[kDiffRows] = {};
  float anchor_square = 0.0f;
#pragma unroll
  for (uint32_t r = 0; r < kDiffRows; ++r) {
    const uint32_t slot = first + r * step;
    rows[r] = slot < n_tokens
                  ? FindRow(p.keys, layer.keys, layer.block_table, head, slot)
                  : CacheRow{};
  }
  VisitRowsWith(p.keys, rows, lane, SumsOf(p, blockIdx.z, head, 0),
                [&](uint32_t r, float v, float a) {
                  dots[r] = Fma(v, a, dots[r]);
                  squares[r] = Fma(v, v, squares[r]);
                  if (r == 0) anchor_square = Fma(a, a, anchor_square);
                });
  // The dot products are with the sum; division by n_tokens gives those with
  // the mean.
  const float n = static_cast<float>(n_tokens);
  const float length =
      AtLeast(SquareRoot(SumOverLanes(anchor_square, lanes)) / n, kLeastCosine);
#pragma unroll
  for (uint32_t r = 0; r < kDiffRows; ++r) {
    const float dot = SumOverLanes(dots[r], lanes) / n;
    const float norm = SquareRoot(SumOverLanes(squares[r], lanes));
    if (lane != 0 || rows[r].address == 0) continue;
    const uint64_t place = uint64_t{head} * layer.n_tokens + first + r * step;
    StoreGlobal(layer.scores + place * sizeof(float),
                KeyDiff(dot, norm, length));
  }
}

}  // namespace kvevict::cuda
