// Attention within chunks in double precision, step by step as published.
#ifndef KVEVICT_TESTS_ORACLE_NON_CAUSAL_H_
#define KVEVICT_TESTS_ORACLE_NON_CAUSAL_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// rows[group, n_tokens] of one KV head: the softmax of q.k over the keys of a chunk of
// `chunk` tokens, for each of its queries, summed over these. queries[group, stride,
// head_dim], of which the first n_tokens count; keys[n_tokens, head_dim]; biases[n_tokens]
// of logits, or NULL.
void oracle_non_causal_rows(uint32_t group, uint32_t stride, uint32_t n_tokens,
                            uint32_t head_dim, const float* queries,
                            const float* keys, const float* biases,
                            uint32_t chunk, double* rows);

// kvpress's normalisation of the scores of all heads of a layer, [n]: less their
// mean, divided by their standard deviation (n - 1), at least 1e-6.
void oracle_normalise(double* scores, uint64_t n);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_NON_CAUSAL_H_
