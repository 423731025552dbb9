// Scores by the negative dot products of keys with a direction per KV head.
#include "key_filter.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "row_products.cuh"

namespace kvevict::cuda {

// Grid (n_tokens / KeyFilterBlockRows() of the longest layer, n_kv_heads,
// n_layers). p.keys.lanes threads share a row, and each has its part of
// kFilterRows rows. Reads every key once and writes 4 bytes per key; the filter
// stays in a cache.
KV_KERNEL(filter_keys, KeyFilterParams, kFilterThreads, 4) {
  const KeyFilterLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lanes = p.keys.lanes;
  const uint32_t lane = threadIdx.x % lanes;
  const uint32_t step = kFilterThreads / lanes;
  const uint32_t first =
      blockIdx.x * (step * kFilterRows) + threadIdx.x / lanes;
  CacheRow rows[kFilterRows];
  float sums[kFilterRows] = {};
#pragma unroll
  for (uint32_t r = 0; r < kFilterRows; ++r) {
    const uint32_t slot = first + r * step;
    rows[r] = slot < n_tokens
                  ? FindRow(p.keys, layer.keys, layer.block_table, head, slot)
                  : CacheRow{};
  }
  const uint64_t filter =
      layer.filter + head * p.filter_head_stride * sizeof(float);
  VisitRowsWith(p.keys, rows, lane, filter, [&](uint32_t r, float v, float f) {
    sums[r] = Fma(v, f, sums[r]);
  });
#pragma unroll
  for (uint32_t r = 0; r < kFilterRows; ++r) {
    sums[r] = SumOverLanes(sums[r], lanes);
    if (lane != 0 || rows[r].address == 0) continue;
    const uint64_t place = uint64_t{head} * layer.n_tokens + first + r * step;
    StoreGlobal(layer.scores + place * sizeof(float), -sums[r]);
  }
}

}  // namespace kvevict::cuda
