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

// Indices of the k highest scores, ascending; ties to the lower index.
void NthElementSelect(const float* scores, uint32_t n, uint32_t k,
                      int32_t* places);

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_REFERENCE_H_
