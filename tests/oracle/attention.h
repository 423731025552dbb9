// Attention of one query in double precision, with the error that an f32 kernel may
// make.
#ifndef KVEVICT_TESTS_ORACLE_ATTENTION_H_
#define KVEVICT_TESTS_ORACLE_ATTENTION_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oracle_query {
  const float* query;   // [k_dim]
  const float* keys;    // [n_tokens, k_dim]
  const float* values;  // [n_tokens, v_dim], rows value_stride apart
  uint32_t n_tokens;
  uint32_t k_dim;
  uint32_t v_dim;
  uint32_t value_stride;
  int64_t slot;     // the query's slot, which may be absent
  uint32_t window;  // 0: none
  int non_causal;
  double scale;
  double softcap;       // 0: none
  const float* sink;    // NULL: none
  const float* biases;  // [n_tokens], added to capped logits; NULL: none
  // What a kernel may be off by beyond the roundings of f32: a dot product,
  // relative to the sum of its terms' magnitudes; the weighted values, likewise.
  double dot_error;
  double value_error;
} oracle_query;

typedef struct oracle_attended {
  double* out;            // [v_dim]
  double* out_tolerance;  // [v_dim], absolute
  double lse;
  double lse_tolerance;
  double* weights;           // [n_tokens], or NULL
  double* weight_tolerance;  // [n_tokens], or NULL
} oracle_attended;

void oracle_attend(const oracle_query* in, oracle_attended* out);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_ATTENTION_H_
