/* The rows of a head after an eviction that merges or fits them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/model.h"

enum { TEST_MERGED_HEADS = 4, TEST_MERGED_TOKENS = 400 };

/* What a model held before an eviction. */
typedef struct test_held {
  test_cache* caches[TEST_MAX_LAYERS];
  int32_t positions[TEST_MAX_LAYERS][TEST_MERGED_HEADS][TEST_MERGED_TOKENS];
  uint32_t n[TEST_MAX_LAYERS][TEST_MERGED_HEADS];
} test_held;

void test_hold(const test_model* model, test_held* held);
void test_held_free(const test_model* model, test_held* held);

/* What comparisons have seen. */
typedef struct test_changes {
  uint32_t n_heads, n_merged; /* merged heads, and those that could be told */
  uint32_t n_weak;            /* heads with fewer than twice as many queries */
  double most_fitted; /* the largest change of a value, in bounds of it */
  double most_biased; /* the largest change of a bias */
} test_changes;

/* Fails unless every row that is held after an eviction is what the oracle
 * makes of what was held before, merged or fitted as the policy says. The model
 * takes over changed rows. sinks [n_layers, n_q_heads] or NULL. Adds to the
 * sum; returns the weak fits. */
uint32_t test_expect_changes(test_model* model, const test_held* held,
                             const float* sinks, test_changes* sum,
                             const char* what);

/* Fails the test unless slots [0, n_keep) of a head of `got` hold the listed
 * rows of `before`, merged as the oracle says. Rows that merge nothing equal
 * those of `moved`, compacted without merging. A fraction of 0 is 1. Returns
 * false without comparing if f32 may decide otherwise than the oracle. */
bool test_expect_merged(const test_cache* before, const test_cache* got,
                        const test_cache* moved, uint32_t head,
                        uint32_t n_tokens, const int32_t* keep, uint32_t n_keep,
                        kvevict_merge merge, double threshold, double fraction,
                        const char* what);

/* Evicts 80 rows to 40 by a policy that changes rows. With `what` it must be
 * refused before anything changes, for a reason that the message has. */
void test_expect_reads(const char* policy, kvevict_dtype dtype,
                       uint32_t v_head_dim, const char* what,
                       const char* reason);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_ */
