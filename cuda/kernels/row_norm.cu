// Euclidean norms of rows, and how far their elements lie apart. Norms are scores
// when negated, so that the smallest norm ranks first, or they weight present
// scores.
#include "row_norm.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "weigh.cuh"

namespace kvevict::cuda {

// Grid (n_tokens / NormBlockRows() of the longest layer, n_kv_heads, n_layers).
// p.rows.lanes threads share a row, and each has its part of kNormRows rows.
// Reads every row once and writes 4 bytes per row, which weighing also reads.
KV_KERNEL(row_norms, RowNormParams, kNormThreads, 4) {
  const RowNormLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lanes = p.rows.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const uint32_t step = kNormThreads / lanes;
  const uint32_t first = blockIdx.x * (step * kNormRows) + threadIdx.x / lanes;
  CacheRow rows[kNormRows];
  float sums[kNormRows] = {};
#pragma unroll
  for (uint32_t r = 0; r < kNormRows; ++r) {
    const uint32_t slot = first + r * step;
    rows[r] = slot < n_tokens
                  ? FindRow(p.rows, layer.rows, layer.block_table, head, slot)
                  : CacheRow{};
  }
  VisitRows(p.rows, rows, lane, [&](uint32_t r, uint32_t, float v) {
    sums[r] = Fma(v, v, sums[r]);
  });
#pragma unroll
  for (uint32_t r = 0; r < kNormRows; ++r) {
    sums[r] = SumOverLanes(sums[r], lanes);
    if (lane != 0 || rows[r].address == 0) continue;
    const uint64_t place = uint64_t{head} * layer.n_tokens + first + r * step;
    const uint64_t score = layer.scores + place * sizeof(float);
    const float norm = SquareRoot(sums[r]);
    StoreGlobal(score, p.use == kNormWeighs
                           ? Weighed(LoadGlobal<float>(score), p.epsilon, norm)
                           : (p.use == kNormPlain ? norm : -norm));
  }
}

// The same grid. Writes the range or the variance of each row, as
// core/kernels/row_spread.cc has them.
KV_KERNEL(row_spreads, RowNormParams, kNormThreads, 2) {
  const RowNormLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lanes = p.rows.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const uint32_t step = kNormThreads / lanes;
  const uint32_t first = blockIdx.x * (step * kNormRows) + threadIdx.x / lanes;
  CacheRow rows[kNormRows];
  float sums[kNormRows] = {};
  float squares[kNormRows] = {};
  float least[kNormRows];
  float most[kNormRows];
#pragma unroll
  for (uint32_t r = 0; r < kNormRows; ++r) {
    const uint32_t slot = first + r * step;
    rows[r] = slot < n_tokens
                  ? FindRow(p.rows, layer.rows, layer.block_table, head, slot)
                  : CacheRow{};
    least[r] = ToFloat<kF32>(kInfinityBits);
    most[r] = -least[r];
  }
  VisitRows(p.rows, rows, lane, [&](uint32_t r, uint32_t, float v) {
    if (v < least[r]) least[r] = v;
    if (v > most[r]) most[r] = v;
    sums[r] += v;
    squares[r] = Fma(v, v, squares[r]);
  });
  const float n = static_cast<float>(p.rows.head_dim);
#pragma unroll
  for (uint32_t r = 0; r < kNormRows; ++r) {
    for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
      const float low = ShuffleXor(least[r], mask);
      const float high = ShuffleXor(most[r], mask);
      if (low < least[r]) least[r] = low;
      if (high > most[r]) most[r] = high;
    }
    const float mean = SumOverLanes(sums[r], lanes) / n;
    const float of_squares = SumOverLanes(squares[r], lanes) / n;
    if (lane != 0 || rows[r].address == 0) continue;
    const float variance = of_squares - Multiply(mean, mean);
    const uint64_t place = uint64_t{head} * layer.n_tokens + first + r * step;
    StoreGlobal(layer.scores + place * sizeof(float),
                p.is_variance == 0 ? most[r] - least[r]
                                   : (variance > 0.0f ? variance : 0.0f));
  }
}

}  // namespace kvevict::cuda
