/* A model in miniature: caches, queries and a sequence, with an archive of
 * every token's rows, so that after any evictions each slot can be held against
 * the token it should have. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MODEL_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MODEL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/layer_measures.h"
#include "tests/oracle/policy_values.h"

typedef struct test_model_spec {
  const char* policy;
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t max_tokens;    /* slots */
  uint32_t max_positions; /* tokens the archive holds */
  uint32_t k_head_dim;
  uint32_t v_head_dim;
  kvevict_dtype q_dtype;
  kvevict_dtype k_dtype; /* also of V */
  test_layout layout;
  uint32_t n_companions;
  uint32_t n_threads;           /* more than 1: the shuffling runner */
  const uint32_t* head_budgets; /* [n_layers, n_kv_heads]; NULL: the policy's */
  kvevict_context* context;  /* which must stay longer; NULL: one of its own */
  uint32_t report_mass;      /* of kvevict_plan_options */
  uint32_t has_destinations; /* likewise */
  uint32_t draft_tokens;     /* likewise */
} test_model_spec;

/* 2 layers of 4 heads on 2, 100 slots; f16 queries, f32 cache. */
test_model_spec test_small_model(const char* policy);

/* Makes K and V quantized, of a dtype that is drawn, and their sizes multiples of its
 * blocks. */
void test_draw_quantized(test_model_spec* spec, test_random* random);

typedef struct test_model {
  test_model_spec spec;
  const kvevict_policy* policy_handle; /* lives as long as the process */
  oracle_policy policy;
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
  test_allocator allocator;
  test_runner runner;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  test_cache* archive[TEST_MAX_LAYERS]; /* slot = position */
  test_cache* live[TEST_MAX_LAYERS];
  kvevict_view views[TEST_MAX_LAYERS];
  /* [n_layers][max_positions, n_q_heads, k_head_dim] of q_dtype */
  uint8_t* queries[TEST_MAX_LAYERS];
  uint8_t* workspace; /* as many bytes as the plan says, then guard bytes */
  size_t workspace_bytes;
  uint32_t n_seen;
} test_model;

/* Contents depend on the random state alone, not on layout, threads or policy.
 */
test_model* test_model_create(const test_model_spec* spec, test_random random);
void test_model_destroy(test_model* model);

/* Goes on by another plan, of `geometry` or, with NULL, the model's. The new sequence
 * observes. After a failure the model is as before. */
kvevict_status test_model_go_on(test_model* model, const char* policy,
                                const kvevict_geometry* geometry,
                                const kvevict_plan_options* options);

/* The query rows of a layer from a position on. */
kvevict_plane test_model_queries(const test_model* model, uint32_t layer,
                                 uint32_t first_position);

/* Stores the rows of the next n tokens in every layer; and notes them. */
void test_model_store(test_model* model, uint32_t n);
void test_model_append(test_model* model, uint32_t n);

/* Observes the query rows of [first, first + n) in every layer. */
void test_model_observe(test_model* model, uint32_t first, uint32_t n);

/* Observe and append of the next n tokens. */
void test_model_step(test_model* model, uint32_t n);

/* Evicts, in a workspace full of guard bytes, and checks its end afterwards; then
 * asks for the report unless that is NULL. */
kvevict_status test_model_evict(test_model* model,
                                const kvevict_evict_options* options,
                                kvevict_evict_report* report);

/* The context length that budgets are of: tokens seen, at most max_tokens. */
uint32_t test_model_context(const test_model* model);

/* Of a layer, the most of any head. */
uint32_t test_model_stored(const test_model* model, uint32_t layer);
uint32_t test_model_stored_of(const test_model* model, uint32_t layer,
                              uint32_t head);

/* Bytes of one head's row in all planes of a layer. */
uint32_t test_model_row_bytes(const test_model* model, uint32_t layer);

/* positions[stored_of] of a layer and head. */
void test_model_positions(const test_model* model, uint32_t layer,
                          uint32_t head, int32_t* positions);

/* Every answer about positions and slots fits every other one, and every slot
 * holds the rows of its position. */
void test_model_check(const test_model* model, const char* what);

/* Raw weights as scores of a layer's live cache by the oracle:
 * [n_kv_heads, stored] doubles. */
void test_model_oracle_scores(const test_model* model, uint32_t layer,
                              double* scores);

/* Those of one head: [stored_of]. */
void test_model_oracle_scores_of(const test_model* model, uint32_t layer,
                                 uint32_t head, double* scores);

/* Rows as f32 of what a head held while nothing was evicted: queries [group, n_seen,
 * k_head_dim], keys [n_seen, k_head_dim], and the norms of its values [n_seen]. */
void test_model_read_rows(const test_model* model, uint32_t layer,
                          uint32_t head, float* queries, float* keys,
                          double* value_norms);

/* What a layer's live cache and queries measure by the oracle; `ends` is a mean over
 * rows and query heads. */
oracle_measure test_model_measure(const test_model* model, uint32_t layer);

/* What a list is asked to keep in any case: both ends of the policy, and what is
 * protected beside them, held or not. */
uint32_t test_model_asked(const test_model* model,
                          const kvevict_evict_options* options);
/* What must stay of a layer and head: forced[stored_of] of 0 and 1; protected
 * positions as in the options. */
void test_model_forced(const test_model* model, uint32_t layer, uint32_t head,
                       const kvevict_evict_options* options, uint8_t* forced);

/* Fails unless both models hold the same tokens in every layer and head. */
void test_expect_same_tokens(const test_model* a, const test_model* b,
                             const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MODEL_H_ */
