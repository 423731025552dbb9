/* Attention sums, and the scores that policy h2o gives them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_SUMS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_SUMS_H_

#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/plan.h"

enum { TEST_SUMS_HEADS = 2, TEST_N_SUMS_POLICIES = 7 };

extern const char* const test_sums_policies[TEST_N_SUMS_POLICIES];

/* The sums of a layer, of all query heads or of KV heads. */
typedef struct test_sums {
  uint32_t n_heads, group, n_tokens;
  uint32_t n_rows; /* n_heads * group, or n_heads */
  uint64_t stride;
  float* values;
  kvevict_plane plane;
} test_sums;

float test_sum_of(const test_sums* s, uint32_t head, uint32_t g, uint32_t t);

/* The policy's scores of the first n_tokens sums of a head after n_seen queries.
 * Slots hold positions. */
void test_sums_scores(const oracle_policy* policy, const test_sums* s,
                      uint32_t head, uint32_t n_tokens, uint32_t n_seen,
                      const int32_t* positions, double* scores);

/* A plan for a layer with keys of 4 elements. */
test_plan* test_sums_plan(const char* simd_target, const char* policy,
                          uint32_t group, uint32_t n_tokens);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_SUMS_H_ */
