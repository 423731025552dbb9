// What becomes of rows that go, in double precision, and how far from it arithmetic in
// f32 may be.
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
  double* key_bounds;    // likewise; before a result is rounded to a dtype
  double* value_bounds;  // likewise
  uint8_t* changes;      // [n_keep]: whether bytes may change
} oracle_merged;

// Returns how near the nearest decision is, less what f32 may be off: below 0 another
// target, or another set of those that merge, may be as good. Similarities that are
// equal because keys are count as apart.
double oracle_merge(const oracle_merge_rows* rows, kvevict_merge rule,
                    double threshold, double fraction, oracle_merged* out);

#ifdef __cplusplus
}
#endif

#endif  // KVEVICT_TESTS_ORACLE_MERGE_H_
