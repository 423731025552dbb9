// Query rows of attention.cu: what they see, and the states of their splits.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_CUH_
#define KVEVICT_CUDA_KERNELS_ATTENTION_CUH_

#include "attention.h"
#include "cache_rows.cuh"
#include "device.cuh"
#include "tanh.cuh"

#ifndef KV_BIAS
#define KV_BIAS 0
#endif

namespace kvevict::cuda {

constexpr float kUnseen = -1.0f;  // a weight

KV_DEVICE float MinusInfinity() { return -ToFloat<kF32>(kInfinityBits); }

// A query row, and the slots it sees.
struct QueryRow {
  CacheRow stored;
  uint32_t begin;
  uint32_t end;
};

KV_DEVICE QueryRow FindRow(const AttendParams& p, const AttendLayer& layer,
                           uint32_t query, uint32_t q_head, uint32_t n_tokens) {
  QueryRow row = {{}, 0, 0};
  if (query >= p.n_queries) return row;
  row.stored.address = layer.queries + query * p.queries.layout.row_stride +
                       q_head * p.queries.layout.head_stride;
  const int64_t own = int64_t{n_tokens} - p.n_queries + query;
  const int64_t first = p.window == 0 ? 0 : own + 1 - p.window;
  if (first > 0) row.begin = static_cast<uint32_t>(first);
  if (p.non_causal != 0) {
    row.end = n_tokens;
  } else if (own >= 0) {
    row.end = static_cast<uint32_t>(own + 1);
  }
  return row;
}

KV_DEVICE bool IsSeen(const QueryRow& row, uint32_t slot) {
  return slot >= row.begin && slot < row.end;
}

// The logit, in base 2, of the product of a query and a key.
KV_DEVICE float LogitOf(const AttendParams& p, float product) {
  const float x = product * p.query_scale;
  return p.cap == 0.0f ? x : p.cap * Tanh(x);
}

// The bias, in base 2, of a slot of the block's layer.
KV_DEVICE float BiasOf(const AttendParams& p, uint32_t head, uint32_t slot) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return LoadGlobal<float>(RowAddress(p.biases, p.bias_bases[blockIdx.z],
                                      p.layers[blockIdx.z].block_table, head,
                                      slot)) *
         kLog2E;
}

KV_DEVICE uint64_t StateOf(const AttendParams& p, uint32_t layer, uint32_t head,
                           uint32_t block, uint32_t split, uint32_t row) {
  // The grid's y are all KV heads.
  uint64_t place = uint64_t{layer} * gridDim.y + head;
  place = (place * p.n_blocks + block) * p.n_splits + split;
  place = place * kAttendRows + row;
  return p.states +
         place * AttendStateFloats(p.values.head_dim) * sizeof(float);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_CUH_
