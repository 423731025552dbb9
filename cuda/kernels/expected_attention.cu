// Expected attention of future queries with known mean and covariance: the
// logits of query heads, and their softmax over the tokens.
#include "expected_attention.h"

#include "cache_rows.cuh"
#include "counts.cuh"
#include "device.cuh"
#include "over_block.cuh"

#ifndef KV_BIAS
#define KV_BIAS 0
#endif

namespace kvevict::cuda {

namespace {

// A multiple of four, so that one load has a thread's keys.
constexpr uint32_t kKeyStride = kExpectedKeys + 4;  // keys are [element, token]
constexpr uint32_t kCovarianceStride = kExpectedChunk + 2;  // [j, i]

KV_DEVICE uint32_t InChunk(uint32_t head_dim, uint32_t first) {
  return head_dim - first < kExpectedChunk ? head_dim - first : kExpectedChunk;
}

// Loads elements [first, first + kExpectedChunk) of the block's keys; 0 past
// the last. Four threads share a row.
KV_DEVICE void LoadKeys(const CacheRows& keys, const CacheRow& row,
                        uint32_t first, float* to) {
  constexpr uint32_t kLanes = kExpectedThreads / kExpectedKeys;
  const uint32_t key = threadIdx.x / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t n = InChunk(keys.head_dim, first);
  const CacheRow at[1] = {row};
  VisitRows(
      keys, {first, n, kLanes}, at, lane,
      [&](uint32_t, uint32_t i, float v) { to[i * kKeyStride + key] = v; });
  for (uint32_t i = n + lane; i < kExpectedChunk; i += kLanes) {
    to[i * kKeyStride + key] = 0.0f;
  }
}

// Loads rows from i on and columns from j on of a query head's covariance.
KV_DEVICE void LoadCovariance(uint64_t covariance, uint32_t head_dim,
                              uint32_t i, uint32_t j, float* to) {
  for (uint32_t k = threadIdx.x; k < kExpectedChunk * kExpectedChunk;
       k += kExpectedThreads) {
    const uint32_t row = k / kExpectedChunk;
    const uint32_t column = k % kExpectedChunk;
    float v = 0.0f;
    if (i + row < head_dim && j + column < head_dim) {
      const uint64_t place = uint64_t{i + row} * head_dim + j + column;
      v = LoadGlobal<float>(covariance + place * sizeof(float));
    }
    to[column * kCovarianceStride + row] = v;
  }
}

}  // namespace

// Grid (n_tokens / kExpectedKeys of the longest layer, n_kv_heads, n_layers). A
// block computes its keys for all query heads of their KV head, one after the
// other. Of the products of the covariance and the keys a thread owns four keys
// and two rows i, and 16 adjacent threads share the keys. 22 KiB shared. Reads
// a key head_dim / 32 times for every query head, all but the first time from
// the L1 cache, and the covariance once per block.
KV_KERNEL(expected_logits, ExpectedParams, kExpectedThreads, 2) {
  KV_SHARED(float, row_keys, kExpectedChunk* kKeyStride);
  KV_SHARED(float, column_keys, kExpectedChunk* kKeyStride);
  KV_SHARED(float, covariance_tile, kExpectedChunk* kCovarianceStride);
  const ExpectedLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t first_key = blockIdx.x * kExpectedKeys;
  if (first_key >= n_tokens) return;
  const uint32_t dim = p.keys.head_dim;
  // Keys past the last repeat the last one, and are not written.
  const uint32_t key =
      first_key + threadIdx.x / (kExpectedThreads / kExpectedKeys);
  const CacheRow key_row = FindRow(p.keys, layer.keys, layer.block_table, head,
                                   key < n_tokens ? key : n_tokens - 1);
  const uint32_t my_row = threadIdx.x % 16 * 2;
  const uint32_t my_keys = threadIdx.x / 16 * 4;
  for (uint32_t g = 0; g < p.group; ++g) {
    const uint64_t q_head = uint64_t{head} * p.group + g;
    const uint64_t mean = layer.mean + q_head * p.mean_stride * sizeof(float);
    const uint64_t covariance =
        layer.covariance + q_head * p.covariance_stride * sizeof(float);
    float logits[4] = {};
    for (uint32_t i = 0; i < dim; i += kExpectedChunk) {
      BlockSync();  // all have read what is overwritten
      LoadKeys(p.keys, key_row, i, row_keys);
      float products[2][4] = {};
      for (uint32_t j = 0; layer.covariance != 0 && j < dim;
           j += kExpectedChunk) {
        if (j > 0) BlockSync();
        LoadKeys(p.keys, key_row, j, column_keys);
        LoadCovariance(covariance, dim, i, j, covariance_tile);
        BlockSync();
#pragma unroll 8
        for (uint32_t c = 0; c < kExpectedChunk; ++c) {
          const float* const keys = column_keys + c * kKeyStride + my_keys;
          const float* const rows =
              covariance_tile + c * kCovarianceStride + my_row;
#pragma unroll
          for (uint32_t k = 0; k < 4; ++k) {
            products[0][k] = Fma(rows[0], keys[k], products[0][k]);
            products[1][k] = Fma(rows[1], keys[k], products[1][k]);
          }
        }
      }
      if (layer.covariance == 0) BlockSync();
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        if (i + my_row + r >= dim) continue;
        const float* const keys =
            row_keys + (my_row + r) * kKeyStride + my_keys;
        const float m =
            p.scale *
            LoadGlobal<float>(mean + uint64_t{i + my_row + r} * sizeof(float));
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          logits[k] =
              Fma(Fma(p.half_square, products[r][k], m), keys[k], logits[k]);
        }
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      logits[k] = SumOverLanes(logits[k], 16);
      const uint32_t slot = first_key + my_keys + k;
      if (my_row != 0 || slot >= n_tokens) continue;
      if constexpr (KV_BIAS != 0) {
        logits[k] += LoadGlobal<float>(RowAddress(
            p.biases, p.bias_bases[blockIdx.z], layer.block_table, head, slot));
      }
      StoreGlobal(layer.rows + (q_head * layer.n_tokens + slot) * sizeof(float),
                  logits[k]);
    }
  }
}

// Grid (n_q_heads, n_layers). A block has a row of logits, in place. The first
// n_sink are not in the softmax. Reads a row three times and writes it once.
KV_KERNEL(expected_softmax, ExpectedParams, kExpectedThreads, 1) {
  KV_SHARED(float, most_of_warps, kExpectedThreads / 32);
  KV_SHARED(float, sum_of_warps, kExpectedThreads / 32);
  constexpr float kLog2E = 1.44269504088896340736f;
  const ExpectedLayer& layer = p.layers[blockIdx.y];
  const uint32_t n_tokens = CountOf(p.tokens, layer.first_count,
                                    blockIdx.x / p.group, layer.n_tokens);
  const uint64_t row =
      layer.rows + uint64_t{blockIdx.x} * layer.n_tokens * sizeof(float);
  const auto at = [&](uint32_t i) { return row + uint64_t{i} * sizeof(float); };
  const uint32_t first = p.n_sink + threadIdx.x;
  float most = -ToFloat<kF32>(kInfinityBits);
#pragma unroll 4
  for (uint32_t i = first; i < n_tokens; i += kExpectedThreads) {
    const float v = LoadGlobal<float>(at(i));
    most = v > most ? v : most;
  }
  most = OverBlock<kExpectedThreads>(
      most, most_of_warps, [](float a, float b) { return b > a ? b : a; });
  // Biases may hide all slots, whose scores are then 0.
  const bool is_hidden = KV_BIAS != 0 && most == -ToFloat<kF32>(kInfinityBits);
  if (is_hidden) most = 0.0f;
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t i = first; i < n_tokens; i += kExpectedThreads) {
    sum += Exp2((LoadGlobal<float>(at(i)) - most) * kLog2E);
  }
  sum = OverBlock<kExpectedThreads>(sum, sum_of_warps,
                                    [](float a, float b) { return a + b; });
  const float scale = is_hidden ? 0.0f : 1.0f / sum;
#pragma unroll 4
  for (uint32_t i = first; i < n_tokens; i += kExpectedThreads) {
    const float v = Exp2((LoadGlobal<float>(at(i)) - most) * kLog2E);
    StoreGlobal(at(i), v * scale);
  }
  for (uint32_t i = threadIdx.x; i < p.n_sink && i < n_tokens;
       i += kExpectedThreads) {
    StoreGlobal(at(i), 0.0f);
  }
}

}  // namespace kvevict::cuda
