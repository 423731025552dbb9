// Euclidean norms of rows. They are scores when negated, so that the smallest
// norm ranks first, or they weight present scores.
#include "row_norm.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "weigh.cuh"

namespace kvevict::cuda {

// Grid (n_tokens / NormBlockRows() of the longest layer, n_kv_heads, n_layers).
// p.rows.lanes threads share a row, and each has its part of kNormRows rows.
// Reads every row once and writes 4 bytes per row, which p.weighs also reads.
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
    StoreGlobal(score, p.weighs != 0
                           ? Weighed(LoadGlobal<float>(score), p.epsilon, norm)
                           : -norm);
  }
}

}  // namespace kvevict::cuda
