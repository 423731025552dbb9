// Short and obvious implementations to compare speed and results with.
#ifndef KVEVICT_TESTS_BENCH_REFERENCE_H_
#define KVEVICT_TESTS_BENCH_REFERENCE_H_

#include <cstdint>

#include "tests/bench/workload.h"

namespace kvevict::bench {

// Weights [n_tokens] of one query head of f32 data, summed over the window's rows: a
// 256-bit dot of four accumulators and a vector softmax, row by row, as in many engines.
void RowDotScores(const AttentionData& data, KeyLayout layout, uint32_t q_head,
                  float* weights);

// out[window, head_dim] = causal attention of one query head of f32 data, done the
// same way. Keys are also the values, so there are two products.
void RowDotAttention(const AttentionData& data, KeyLayout layout,
                     uint32_t q_head, float* out);

// A token's attention, f32: queries [n_kv_heads, 4, head_dim], keys and values
// [n_tokens, n_kv_heads, head_dim]. head_dim is a multiple of 16.
struct DecodeStep {
  uint32_t n_tokens;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  const float* queries;
  const float* keys;
  const float* values;
};

// out[n_kv_heads, 4, head_dim]; all query heads share one read of the rows.
// Scratch: 8 * (n_tokens + 8) floats.
void Attend(const DecodeStep& step, float* scratch, float* out);

// Indices of the k highest scores, ascending; ties to the lower index.
void NthElementSelect(const float* scores, uint32_t n, uint32_t k,
                      int32_t* places);

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_REFERENCE_H_
