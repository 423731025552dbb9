/* A model whose layers differ in heads, head sizes, dtypes and values; caches are
 * full, of a window or absent. A model beside each full layer has only layers like
 * it, and the same rows in the layer's place. */
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
  test_model_spec specs[TEST_MAX_LAYERS]; /* only full layers have one */
  char policies[TEST_MAX_LAYERS][200];    /* policies of the models beside */
  uint32_t head_budgets[TEST_MAX_LAYERS][TEST_MAX_LAYERS * TEST_MIXED_HEADS];
  test_runner runner;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  test_cache* live[TEST_MAX_LAYERS];
  kvevict_view
      views[TEST_MAX_LAYERS]; /* without a full cache: a size and zeros */
  test_model* alike[TEST_MAX_LAYERS]; /* NULL without a full cache */
  uint8_t* workspace;                 /* has guard bytes behind it */
  size_t workspace_bytes;
} test_mixed;

/* Draws layers, at least one of them full. `opaque` makes some rows unreadable. */
test_mixed* test_mixed_draw(test_random* random, bool opaque);

/* Draws layers for a policy, which may have to read values. */
test_mixed* test_mixed_draw_for(const char* policy, test_random* random,
                                bool opaque);

bool test_mixed_is_full(const test_mixed* mixed, uint32_t layer);

/* Makes plan, sequence and caches. budgets: those of all heads end to end, or NULL.
 * An empty entry of `policies` becomes the policy. */
void test_mixed_open(test_mixed* mixed, const char* policy,
                     const uint32_t* budgets, test_random* random);
void test_mixed_destroy(test_mixed* mixed);

/* Stores and notes n more tokens in every layer, here and in the models beside. */
void test_mixed_append(test_mixed* mixed, uint32_t n);

/* The same, and observes the query rows, also of layers without a full cache. */
void test_mixed_step(test_mixed* mixed, uint32_t n);

/* Evicts in a workspace of any size from the least on. */
kvevict_status test_mixed_evict(test_mixed* mixed,
                                const kvevict_evict_options* options,
                                test_random* random);

/* Fails unless a full layer has the tokens and bytes of the model beside it. */
void test_mixed_expect_alike(const test_mixed* mixed, uint32_t layer,
                             const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MIXED_H_ */
