// Euclidean norms of keys, negated: the smallest ranks first.
#include "key_norm.h"

#include "counts.cuh"
#include "device.cuh"

namespace kvevict::cuda {

namespace {

KV_DEVICE uint64_t KeyRow(const KeyNormParams& p, const KeyNormLayer& layer,
                          uint32_t head, uint32_t slot) {
  const RowLayout& keys = p.keys;
  const uint64_t base = layer.keys + head * keys.head_stride;
  if (keys.block_size == 0) return base + slot * keys.row_stride;
  const uint32_t page = slot / keys.block_size;
  const uint64_t entry = uint64_t{head} * keys.table_head_stride + page;
  const int64_t block = LoadGlobal<int32_t>(layer.block_table + entry * 4);
  return base + block * keys.block_stride +
         (slot - page * keys.block_size) * keys.row_stride;
}

template <int kDType>
KV_DEVICE float AddSquare(float sum, uint32_t bits) {
  const float v = ToFloat<kDType>(bits);
  return Fma(v, v, sum);
}

template <int kDType>
KV_DEVICE float AddWord(float sum, uint32_t word) {
  if constexpr (kDType == kF32) {
    return AddSquare<kDType>(sum, word);
  } else {
    sum = AddSquare<kDType>(sum, word & 0xffff);
    return AddSquare<kDType>(sum, word >> 16);
  }
}

// What one lane loads of some rows, 16 bytes at a time. Row addresses of 0 are of
// no rows.
template <int kDType>
KV_DEVICE void AddWide(const KeyNormParams& p,
                       const uint64_t (&rows)[kNormRows], uint32_t lane,
                       float (&sums)[kNormRows]) {
  constexpr uint32_t kElements = kDType == kF32 ? 4 : 8;
  for (uint32_t i = lane; i < p.head_dim / kElements; i += p.lanes) {
    Bytes16 words[kNormRows];
#pragma unroll
    for (uint32_t r = 0; r < kNormRows; ++r) {
      words[r] = rows[r] == 0 ? Bytes16{}
                              : LoadGlobal<Bytes16>(rows[r] + uint64_t{i} * 16);
    }
#pragma unroll
    for (uint32_t r = 0; r < kNormRows; ++r) {
      for (uint32_t j = 0; j < 4; ++j) {
        sums[r] = AddWord<kDType>(sums[r], words[r].x[j]);
      }
    }
  }
}

// The same, an element at a time.
template <int kDType>
KV_DEVICE void AddNarrow(const KeyNormParams& p,
                         const uint64_t (&rows)[kNormRows], uint32_t lane,
                         float (&sums)[kNormRows]) {
  for (uint32_t i = lane; i < p.head_dim; i += p.lanes) {
#pragma unroll
    for (uint32_t r = 0; r < kNormRows; ++r) {
      if (rows[r] == 0) continue;
      const uint64_t at = rows[r] + i * p.keys.element_stride;
      uint32_t bits;
      if constexpr (kDType == kF32) {
        bits = LoadGlobal<uint32_t>(at);
      } else {
        bits = LoadGlobal<uint16_t>(at);
      }
      sums[r] = AddSquare<kDType>(sums[r], bits);
    }
  }
}

template <int kDType, bool kCanScore>
KV_DEVICE void AddRows(const KeyNormParams& p,
                       const uint64_t (&rows)[kNormRows], uint32_t lane,
                       float (&sums)[kNormRows]) {
  if constexpr (kCanScore) {
    if (p.wide != 0) {
      AddWide<kDType>(p, rows, lane, sums);
    } else {
      AddNarrow<kDType>(p, rows, lane, sums);
    }
  }
}

}  // namespace

// Grid (n_tokens / KeyNormBlockRows() of the longest layer, n_kv_heads, n_layers);
// p.lanes threads share a row, and each has its part of kNormRows rows. Reads every
// key once, writes 4 bytes per key.
KV_KERNEL(key_norms, KeyNormParams, kNormThreads, 4) {
  const KeyNormLayer& layer = p.layers[blockIdx.z];
  const uint32_t head = blockIdx.y;
  const uint32_t n_tokens =
      CountOf(p.tokens, layer.first_count, head, layer.n_tokens);
  const uint32_t lane = threadIdx.x % p.lanes;
  const uint32_t step = kNormThreads / p.lanes;
  const uint32_t first =
      blockIdx.x * (step * kNormRows) + threadIdx.x / p.lanes;
  uint64_t rows[kNormRows];
  float sums[kNormRows] = {};
#pragma unroll
  for (uint32_t r = 0; r < kNormRows; ++r) {
    const uint32_t slot = first + r * step;
    rows[r] = slot < n_tokens ? KeyRow(p, layer, head, slot) : 0;
  }
#define KVEVICT_DTYPE(Name, text, id, bytes, move, score, rotate) \
  if (p.dtype == k##Name) AddRows<k##Name, score != 0>(p, rows, lane, sums);
#include "core/dtypes.inc"
#undef KVEVICT_DTYPE
#pragma unroll
  for (uint32_t r = 0; r < kNormRows; ++r) {
    for (uint32_t mask = p.lanes / 2; mask > 0; mask /= 2) {
      sums[r] += ShuffleXor(sums[r], mask);
    }
    if (lane != 0 || rows[r] == 0) continue;
    const uint64_t place = uint64_t{head} * layer.n_tokens + first + r * step;
    StoreGlobal(layer.scores + place * sizeof(float), -SquareRoot(sums[r]));
  }
}

}  // namespace kvevict::cuda
