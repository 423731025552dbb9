// Scores of the observation window in double precision, step by step as
// published.
#ifndef KVEVICT_TESTS_ORACLE_SCORES_H_
#define KVEVICT_TESTS_ORACLE_SCORES_H_

#include <stdint.h>

#include "tests/oracle/policy_values.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oracle_attention {
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t n_tokens;
  uint32_t window;
  uint32_t head_dim;
  double scale;
  const float* queries;  // [n_q_heads, window, head_dim]
  const float* keys;     // [n_kv_heads, n_tokens, head_dim]
  // The policy's rows, softmax and logits; NULL: causal rows, summed.
  const oracle_policy* policy;
  // If the policy has reference queries: [n_q_heads, reference, head_dim] and their
  // positions, NULL: behind all tokens. slot_positions[n_tokens]; NULL: slots.
  const float* reference;
  const int32_t* reference_positions;
  const int32_t* slot_positions;
  double softcap;       // of scaled logits; 0: none
  const float* sinks;   // [n_q_heads]: logits of softmax sinks; NULL: none
  const float* biases;  // [n_kv_heads, n_tokens], of capped logits; NULL: none
} oracle_attention;

// weights[n_tokens]: the softmax weights of one row, of the window or, from row
// `window` on, of the reference queries.
void oracle_row_weights(const oracle_attention* in, uint32_t head, uint32_t row,
                        double* weights);

// The unbiased variance; n >= 2.
double oracle_variance(const double* values, uint32_t n);

// weights[n_q_heads, n_tokens]: softmax weights, summed over the window's rows, or
// their maximum, after each row is pooled if the order says so; with row_spread, and the variance. Where logits are reduced, all query heads of a KV head have the same.
void oracle_window_weights(const oracle_attention* in, double* weights);

// bounds[n_q_heads, n_tokens] get what the variances of those rows add if a weight is off
// by a part of it, `tolerance`. Of weights that differ no more than f32 rounds, it is
// nothing.
void oracle_add_spread_bounds(const oracle_attention* in, double tolerance,
                              double* bounds);

// One row of n values pooled; out is not in.
void oracle_pool(const double* in, uint32_t n, const oracle_policy* policy,
                 double* out);

// DefensiveKV: what is below the mean of all becomes it. If that is not finite nothing
// does.
void oracle_raise_to_mean(double* scores, uint32_t n);

// scores[n] of a KV head from rows[group, stride] of its query heads: the first n_past
// are pooled, reduced, raised and multiplied by token_weights[n] (NULL: not) in the
// policy's order. The others are +infinity.
void oracle_shape(const oracle_policy* policy, uint32_t group, uint32_t stride,
                  uint32_t n, uint32_t n_past, const double* rows,
                  const double* token_weights, double* scores);

// rows[group, n_tokens] of expected attention, and how far f32 may be off. The first
// n_sink are 0. covariance may be NULL, and so may biases[n_tokens].
void oracle_expected_rows(uint32_t n_tokens, uint32_t n_sink, uint32_t group,
                          uint32_t head_dim, double scale, const float* keys,
                          const float* mean, const float* covariance,
                          const float* biases, double* rows, double* bounds);

// scores[n_kv_heads, n_tokens] from the weights, as the policy shapes them. A
// kept window is +infinity and outside the pooling. A window that is not kept
// is like the rest.
void oracle_shape_scores(const oracle_policy* policy,
                         const oracle_attention* in, const double* weights,
                         double* scores);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_SCORES_H_
