// Scores from the keys and values of one head in double precision, and how far f32
// arithmetic may be off.
#ifndef KVEVICT_TESTS_ORACLE_KEY_VALUE_SCORES_H_
#define KVEVICT_TESTS_ORACLE_KEY_VALUE_SCORES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// scores[n_tokens], bounds[n_tokens]. A token that holds NaN or infinity scores NaN.
typedef struct oracle_rows {
  uint32_t n_tokens, n_sink;
  uint32_t block;  // the tokens that are compared with each other
  uint32_t k_dim, v_dim;
  const float* keys;    // [n_tokens, k_dim]
  const float* values;  // [n_tokens, v_dim]
} oracle_rows;

// LagKV: partitions of `block` tokens behind the sinks are measured by the next one. If
// ranks is 0 a token scores by the mean of two softmaxes, otherwise by how many of its
// partition are lower, as far as f32 can tell them apart.
void oracle_lag(const oracle_rows* in, int ranks, double* scores,
                double* bounds);

// CUR: the product of a key's and a value's share of the squared norms in their window,
// as a share of all. Sinks score 1.
void oracle_cur(const oracle_rows* in, double* scores, double* bounds);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_KEY_VALUE_SCORES_H_
