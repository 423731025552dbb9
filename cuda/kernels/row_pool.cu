// Pools the rows of a window one by one, and reduces them, as
// core/kernels/pool_rows.cc does.
#include "row_pool.h"

#include "counts.cuh"
#include "device.cuh"
#include "over_block.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint32_t PooledOf(const RowPoolParams& p, uint32_t kv_head) {
  return CountOf(p.tokens, p.first_count, kv_head, p.n_tokens) - p.n_unpooled;
}

KV_DEVICE uint64_t RowAt(const RowPoolParams& p, uint64_t row) {
  return p.rows + row * p.n_tokens * sizeof(float);
}

KV_DEVICE float LoadAt(uint64_t row, uint32_t i) {
  return LoadGlobal<float>(row + uint64_t{i} * sizeof(float));
}

// The larger one, or NaN if either is.
KV_DEVICE float Larger(float a, float b) { return a > b || a != a ? a : b; }

KV_DEVICE float Combine(float a, float b, bool is_max) {
  return is_max ? Larger(a, b) : a + b;
}

// The terms of the output at i, which are in the row.
struct Terms {
  uint32_t begin;
  uint32_t end;

  KV_DEVICE Terms(uint32_t i, uint32_t n, uint32_t kernel) {
    const uint32_t half = kernel / 2;
    begin = i < half ? 0 : i - half;
    end = n - i > half ? i + half + 1 : n;
  }
};

KV_DEVICE float Pooled(const RowPoolParams& p, uint64_t row, uint32_t i,
                       uint32_t n) {
  const Terms terms(i, n, p.kernel);
  float v = LoadAt(row, terms.begin);
  for (uint32_t j = terms.begin + 1; j < terms.end; ++j) {
    v = Combine(v, LoadAt(row, j), p.pool_is_max != 0);
  }
  if (p.pool_is_max != 0) return v;
  const uint32_t n_terms =
      p.edge_shrinks != 0 ? terms.end - terms.begin : p.kernel;
  return v * (1.0f / static_cast<float>(n_terms));
}

}  // namespace

// The factors that give rows the sum that they had before they were pooled by
// an average. Grid (window * group, n_kv_heads); a block has one row. Reads the
// rows once.
KV_KERNEL(row_factors, RowPoolParams, kRowPoolThreads, 4) {
  KV_SHARED(float, warps, 2 * kRowPoolThreads / 32);
  const uint64_t number = uint64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const uint64_t row = RowAt(p, number);
  const uint32_t n = PooledOf(p, blockIdx.y);
  float sum = 0.0f;
  float pooled = 0.0f;
  for (uint32_t i = threadIdx.x; i < n; i += kRowPoolThreads) {
    const float v = LoadAt(row, i);
    const Terms outputs(i, n, p.kernel);  // that it is a term of
    sum += v;
    pooled += v * static_cast<float>(outputs.end - outputs.begin);
  }
  const auto add = [](float a, float b) { return a + b; };
  sum = OverBlock<kRowPoolThreads>(sum, warps, add);
  pooled =
      OverBlock<kRowPoolThreads>(pooled, warps + kRowPoolThreads / 32, add);
  if (threadIdx.x != 0) return;
  pooled *= 1.0f / static_cast<float>(p.kernel);
  StoreGlobal(p.factors + number * sizeof(float),
              pooled == 0.0f ? 1.0f : sum / pooled);
}

// Grid (n_tokens / 256, n_kv_heads). A thread has one slot. Reads each weight
// `kernel` times, all but the first from a cache.
KV_KERNEL(pool_window_rows, RowPoolParams, kRowPoolThreads, 4) {
  const uint32_t i = blockIdx.x * kRowPoolThreads + threadIdx.x;
  const uint32_t kv_head = blockIdx.y;
  const uint32_t n = PooledOf(p, kv_head);
  if (i >= n) return;
  float of_all = 0.0f;
  float mass = 0.0f;
  for (uint32_t g = 0; g < p.group; ++g) {
    float of_head = 0.0f;
    for (uint32_t w = 0; w < p.window; ++w) {
      const uint64_t number = (uint64_t{kv_head} * p.group + g) * p.window + w;
      const uint64_t row = RowAt(p, number);
      float v = Pooled(p, row, i, n);
      if (p.factors != 0) {
        v *= LoadGlobal<float>(p.factors + number * sizeof(float));
      }
      of_head = w == 0 ? v : Combine(of_head, v, p.rows_are_max != 0);
      if (p.masses != 0) mass += LoadAt(row, i);
    }
    of_head *= p.row_scale;
    of_all = g == 0 ? of_head : Combine(of_all, of_head, p.heads_are_max != 0);
  }
  const uint64_t place = (uint64_t{kv_head} * p.n_tokens + i) * sizeof(float);
  StoreGlobal(p.out + place, of_all * p.head_scale);
  if (p.masses == 0) return;
  StoreGlobal(p.masses + place, mass / p.mass_divisor);
}

}  // namespace kvevict::cuda
