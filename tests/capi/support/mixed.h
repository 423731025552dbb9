/* A model whose layers differ: heads, head sizes, dtypes, values or none, and caches
 * that are full, of a window, or not there. Beside each full layer stands a model
 * whose layers are all like that one, with the same rows in the layer's place. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MIXED_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MIXED_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/model.h"

enum { TEST_MIXED_HEADS = 4, TEST_MIXED_TOKENS = 100 };

typedef struct test_mixed {
  uint32_t n_layers;
  kvevict_layer_geometry layers[TEST_MAX_LAYERS];
  test_model_spec specs[TEST_MAX_LAYERS]; /* of full layers */
  char policies[TEST_MAX_LAYERS][200];    /* of the models beside */
  uint32_t head_budgets[TEST_MAX_LAYERS][TEST_MAX_LAYERS * TEST_MIXED_HEADS];
  test_runner runner;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  test_cache* live[TEST_MAX_LAYERS];
  kvevict_view
      views[TEST_MAX_LAYERS]; /* without a full cache: a size and zeros */
  test_model* alike[TEST_MAX_LAYERS]; /* NULL without a full cache */
  uint8_t* workspace;                 /* guard bytes behind */
  size_t workspace_bytes;
} test_mixed;

/* Layers at random, one or more of them full. `opaque`: some have rows that cannot be
 * read. */
test_mixed* test_mixed_draw(test_random* random, bool opaque);

/* The same for a policy, which may have to read values. */
test_mixed* test_mixed_draw_for(const char* policy, test_random* random,
                                bool opaque);

bool test_mixed_is_full(const test_mixed* mixed, uint32_t layer);

/* Makes plan, sequence and caches. budgets: those of all heads end to end, or NULL.
 * `policies` that are still "" become the policy. */
void test_mixed_open(test_mixed* mixed, const char* policy,
                     const uint32_t* budgets, test_random* random);
void test_mixed_destroy(test_mixed* mixed);

/* Stores n more tokens in every layer, here and beside, and notes them. */
void test_mixed_append(test_mixed* mixed, uint32_t n);

/* The same, with the query rows shown, of layers without a full cache too. */
void test_mixed_step(test_mixed* mixed, uint32_t n);

/* Evicts in a workspace of some size from the least on. */
kvevict_status test_mixed_evict(test_mixed* mixed,
                                const kvevict_evict_options* options,
                                test_random* random);

/* Fails unless a full layer is what it is in the model beside: tokens and bytes. */
void test_mixed_expect_alike(const test_mixed* mixed, uint32_t layer,
                             const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MIXED_H_ */
