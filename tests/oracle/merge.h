// The effect of merges on rows, in double precision, and how far f32 arithmetic may
// be off.
#ifndef KVEVICT_TESTS_ORACLE_MERGE_H_
#define KVEVICT_TESTS_ORACLE_MERGE_H_

#include <stdint.h>

#include "kvevict/kvevict.h"

#ifdef __cplusplus
extern "C" {
#endif

// One head's rows.
typedef struct oracle_merge_rows {
  const float* keys;    // [n_tokens, key_dim]
  const float* values;  // [n_tokens, value_dim]; NULL: none
  uint32_t n_tokens;
  uint32_t key_dim;
  uint32_t value_dim;
  const int32_t* keep;  // ascending
  uint32_t n_keep;
} oracle_merge_rows;

typedef struct oracle_merged {
  double* keys;          // [n_keep, key_dim]
  double* values;        // [n_keep, value_dim]
  double* key_bounds;    // [n_keep, key_dim], before rounding to a dtype
  double* value_bounds;  // [n_keep, value_dim], before rounding to a dtype
  uint8_t* changes;      // [n_keep]: whether bytes may change
} oracle_merged;

// Returns how near the nearest decision is, less the error of f32. Below 0, another
// target or another set of merging rows may be as good. Similarities of equal keys
// count as apart.
double oracle_merge(const oracle_merge_rows* rows, kvevict_merge rule,
                    double threshold, double fraction, oracle_merged* out);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_MERGE_H_
