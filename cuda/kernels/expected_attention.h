// Arguments and launch shapes of expected_attention.cu.
#ifndef KVEVICT_CUDA_KERNELS_EXPECTED_ATTENTION_H_
#define KVEVICT_CUDA_KERNELS_EXPECTED_ATTENTION_H_

#include "params.h"

namespace kvevict::cuda {

struct ExpectedLayer {
  uint64_t keys;         // slot 0, head 0
  uint64_t block_table;  // i32; paged keys only
  uint64_t mean;         // f32 [n_q_heads, head_dim], head stride below
  // f32 [n_q_heads, head_dim, head_dim], likewise; 0: none
  uint64_t covariance;
  uint64_t rows;  // out: f32 [n_q_heads, n_tokens]
  uint32_t n_tokens;
  int32_t first_count;  // index in ExpectedParams::tokens
};
static_assert(sizeof(ExpectedLayer) == 48);

struct ExpectedParams {
  static constexpr uint32_t kMaxLayers = 66;
  CacheRows keys;
  CountTable tokens;           // per KV head
  uint64_t mean_stride;        // elements
  uint64_t covariance_stride;  // elements
  uint32_t group;
  uint32_t n_sink;  // not in the softmax; score 0
  float scale;
  float half_square;  // scale^2 / 2
  ExpectedLayer layers[kMaxLayers];
  // KV_BIAS: each slot has an f32, added to its logits: their layout, and slot
  // 0, head 0 of each layer.
  RowLayout biases;
  uint64_t bias_bases[kMaxLayers];
};
static_assert(sizeof(ExpectedParams) <= 4096);

constexpr uint32_t kExpectedThreads = 256;
// Keys of a block of expected_logits, and their elements in shared memory at a
// time.
constexpr uint32_t kExpectedKeys = 64;
constexpr uint32_t kExpectedChunk = 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_EXPECTED_ATTENTION_H_
