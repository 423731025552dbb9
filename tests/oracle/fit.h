// Values fitted to queries, in double precision, and how far f32 weights may be off.
#ifndef KVEVICT_TESTS_ORACLE_FIT_H_
#define KVEVICT_TESTS_ORACLE_FIT_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// One KV head, and the queries of all its query heads.
typedef struct oracle_fit {
  const float* queries;  // [n_queries, key_dim]
  const float*
      sinks;          // [n_queries]: the natural sink logit of each; NULL: none
  const float* keys;  // [n_tokens, key_dim]
  const float* values;  // [n_tokens, value_dim]
  uint32_t n_queries;
  uint32_t n_tokens;
  uint32_t key_dim;
  uint32_t value_dim;
  double scale;
  double softcap;       // 0: none
  const int32_t* keep;  // ascending
  uint32_t n_keep;
  double ridge;
  const float* biases;         // [n_tokens], added to capped logits; NULL: none
  const float* fitted_biases;  // [n_keep], in X; NULL: those before
} oracle_fit;

// fitted[n_keep, value_dim] = V + (X'X + lam I)^-1 X'(Y - X V), with lam = ridge
// times the mean diagonal of X'X. bounds: before rounding to a dtype. Returns the
// norm of X fitted - Y divided by that of X V - Y.
double oracle_fit_values(const oracle_fit* in, double* fitted, double* bounds);

// pulls[n_keep]: half the slope, by each B, of |P B - T|^2 + lam |B - 1|^2, where B =
// exp(fitted bias - bias), P has the weights of the kept rows in the softmax over all
// rows, T is the weight of all rows, and lam = ridge times the mean diagonal of P'P.
// bounds: what they are in f32, where the slope is 0. Within limits of B that is the
// minimum, since lam > 0: the sum is convex.
void oracle_fit_bias_pulls(const oracle_fit* in, double* pulls, double* bounds);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_FIT_H_
