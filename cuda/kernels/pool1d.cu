// Pools scores along the tokens, in place, and reduces several rows of scores
// to one. It does the operations of core/kernels/pool1d.cc in the same order,
// so the results have the same bits.
#include "pool1d.h"

#include "counts.cuh"
#include "device.cuh"
#include "pool1d.cuh"

namespace kvevict::cuda {

namespace {

// Fills [begin, end) of a row with +infinity.
KV_DEVICE void FillInfinity(uint64_t row, uint32_t begin, uint32_t end,
                            uint32_t first, uint32_t step) {
  for (uint32_t i = begin + first; i < end; i += step) {
    StoreGlobal(row + uint64_t{i} * sizeof(float), kInfinityBits);
  }
}

}  // namespace

// Grid (n_rows, n_layers). A block walks one row upward. 20 KiB shared. Reads
// and writes every score once.
KV_KERNEL(pool_rows, PoolParams, kPoolThreads, 4) {
  using Tile = PoolTile<4, kMaxPoolKernel>;
  KV_SHARED(uint32_t, words, Tile::kWords);
  const PoolLayer& layer = p.layers[blockIdx.y];
  const uint64_t row =
      layer.rows + uint64_t{blockIdx.x} * layer.n_tokens * sizeof(float);
  const uint32_t n_tokens = CountOf(p.tokens, layer.first_count,
                                    blockIdx.x / p.n_terms, layer.n_tokens);
  const uint32_t n_pooled = n_tokens - p.n_unpooled;
  if (p.kernel > 1) {
    PoolRow<Tile>(Pooling(p, n_pooled), row, words,
                  [row](uint32_t i, float output) {
                    StoreGlobal(row + uint64_t{i} * sizeof(float), output);
                  });
  }
  FillInfinity(row, n_pooled, n_tokens, threadIdx.x, kPoolThreads);
}

// ---- reduce_rows ----

namespace {

KV_DEVICE float Combine(const ReduceParams& p, float a, float b) {
  return p.is_max != 0 ? Larger(a, b, true) : a + b;
}

KV_DEVICE float Finish(const ReduceParams& p, float sum) {
  return p.is_max != 0 ? sum : sum * p.scale;
}

// Reduces four adjacent columns, 16-byte aligned in every row.
KV_DEVICE void ReduceQuad(const ReduceParams& p, uint64_t in, uint64_t stride,
                          uint64_t out) {
  Bytes16 words = LoadGlobal<Bytes16>(in);
  float sum[4];
  for (uint32_t j = 0; j < 4; ++j) sum[j] = ToFloat<kF32>(words.x[j]);
#pragma unroll 4
  for (uint32_t r = 1; r < p.n_terms; ++r) {
    words = LoadGlobal<Bytes16>(in + r * stride);
    for (uint32_t j = 0; j < 4; ++j) {
      sum[j] = Combine(p, sum[j], ToFloat<kF32>(words.x[j]));
    }
  }
  for (uint32_t j = 0; j < 4; ++j) sum[j] = Finish(p, sum[j]);
  memcpy(&words, sum, sizeof(words));
  StoreGlobal(out, words);
}

KV_DEVICE void ReduceColumn(const ReduceParams& p, uint64_t in, uint64_t stride,
                            uint64_t out) {
  float sum = LoadGlobal<float>(in);
#pragma unroll 4
  for (uint32_t r = 1; r < p.n_terms; ++r) {
    sum = Combine(p, sum, LoadGlobal<float>(in + r * stride));
  }
  StoreGlobal(out, Finish(p, sum));
}

}  // namespace

// Grid (tokens / 1024 of the longest layer, n_out_rows, n_layers). A thread
// owns four columns and reads all their terms before it writes, so `out` may be
// the first row.
KV_KERNEL(reduce_rows, ReduceParams, kReduceThreads, 1) {
  const ReduceLayer& layer = p.layers[blockIdx.z];
  const uint64_t stride = uint64_t{layer.n_tokens} * sizeof(float);
  const uint64_t in = layer.in + uint64_t{blockIdx.y} * p.n_terms * stride;
  const uint64_t out = layer.out + uint64_t{blockIdx.y} * stride;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, blockIdx.y, layer.n_tokens);
  const uint32_t n_reduced = n_tokens - p.n_unpooled;
  const uint32_t block = blockIdx.x * kReduceThreads * kReduceColumns;
  if (block >= n_tokens) return;

  const uint32_t i = block + threadIdx.x * kReduceColumns;
  const bool aligned = (layer.in | layer.out | stride) % 16 == 0;
  const uint32_t n_quads = aligned ? n_reduced / 4 * 4 : 0;
  if (i < n_quads) {
    const uint64_t offset = uint64_t{i} * sizeof(float);
    ReduceQuad(p, in + offset, stride, out + offset);
  }
  for (uint32_t k = 0; k < kReduceColumns; ++k) {
    const uint32_t column = block + threadIdx.x + k * kReduceThreads;
    if (column < n_quads || column >= n_reduced) continue;
    const uint64_t offset = uint64_t{column} * sizeof(float);
    ReduceColumn(p, in + offset, stride, out + offset);
  }
  const uint32_t end = n_tokens - block < kReduceThreads * kReduceColumns
                           ? n_tokens
                           : block + kReduceThreads * kReduceColumns;
  FillInfinity(out, block > n_reduced ? block : n_reduced, end, threadIdx.x,
               kReduceThreads);
}

}  // namespace kvevict::cuda
