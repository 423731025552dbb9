// Attention within chunks in double precision, step by step as published.
#ifndef KVEVICT_TESTS_ORACLE_NON_CAUSAL_H_
#define KVEVICT_TESTS_ORACLE_NON_CAUSAL_H_

#include <stdint.h>

#include "tests/oracle/policy_values.h"

#ifdef __cplusplus
extern "C" {
#endif

// One KV head.
typedef struct oracle_non_causal {
  uint32_t group;
  uint32_t n_tokens;
  uint32_t head_dim;
  const float* queries;         // [group, n_tokens, head_dim]
  const float* keys;            // [n_tokens, head_dim]
  const double* token_weights;  // [n_tokens], or NULL: 1
} oracle_non_causal;

// scores[n_tokens]: the softmax of q.k over the keys of a chunk of policy->block
// tokens, for each of its queries, summed over these. The group is reduced, weighed
// and pooled in the policy's order.
void oracle_non_causal_scores(const oracle_non_causal* in,
                              const oracle_policy* policy, double* scores);

// kvpress's normalisation of the scores of all heads of a layer, [n]: less their
// mean, divided by their standard deviation (n - 1), at least 1e-6.
void oracle_normalise(double* scores, uint64_t n);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_NON_CAUSAL_H_
