/* A model in miniature: caches, queries and a sequence. Its archive has every
 * token's rows, so that after any evictions each slot can be compared with its
 * token. */
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
  kvevict_dtype k_dtype; /* V's too */
  test_layout layout;
  uint32_t n_companions;
  uint32_t n_threads;           /* more than 1: the shuffling runner */
  const uint32_t* head_budgets; /* [n_layers, n_kv_heads]; NULL: the policy's */
  const double* layer_budgets;  /* [n_layers]; NULL: the policy's */
  kvevict_context* context;     /* must stay longer; NULL: one of its own */
  uint32_t report_mass;         /* as kvevict_plan_options */
  uint32_t has_destinations;    /* as kvevict_plan_options */
  uint32_t draft_tokens;        /* as kvevict_plan_options */
  bool last_shares;             /* the last layer has the first one's cache */
} test_model_spec;

/* Has 2 layers of 4 query heads on 2 KV heads, 100 slots, f16 queries and an
 * f32 cache. */
test_model_spec test_small_model(const char* policy);
/* Three such layers of head-major f32 rows, with a companion, and more
 * positions. */
test_model_spec test_three_layers(const char* policy);

/* Makes K and V quantized in a random dtype, with sizes that are multiples of
 * its blocks. */
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
  /* The reference queries of evictions: rows of `queries` from here on, and
   * their positions; NULL: behind all tokens. The oracle's scores use them. */
  uint32_t reference_first;
  const int32_t* reference_positions;
  uint8_t* workspace; /* has the plan's size and guard bytes behind it */
  size_t workspace_bytes;
  uint32_t n_seen;
} test_model;

/* Contents depend on the random state alone, not on layout, threads or policy.
 */
test_model* test_model_create(const test_model_spec* spec, test_random random);
/* A small model with these numbers. */
test_model* test_model_of(const char* policy, uint64_t seed);
void test_model_destroy(test_model* model);

/* Goes on by another plan, of `geometry` or, if NULL, of the model's. The new
 * sequence observes. After a failure the model is as before. */
kvevict_status test_model_go_on(test_model* model, const char* policy,
                                const kvevict_geometry* geometry,
                                const kvevict_plan_options* options);

/* Whether a layer has the first one's cache in place of its own. */
bool test_model_shares(const test_model* model, uint32_t layer);

/* Takes the rows that are held for those of their tokens. */
void test_model_adopt(test_model* model);

/* f32 [group, n_rows, k_head_dim] of a KV head's query rows from `first` on,
 * malloc'd. */
float* test_model_read_queries(const test_model* model, uint32_t layer,
                               uint32_t head, uint32_t first, uint32_t n_rows);

/* The query rows of a layer from a position on. */
kvevict_plane test_model_queries(const test_model* model, uint32_t layer,
                                 uint32_t first_position);

/* Gives an eviction the model's reference queries in every layer. */
void test_model_give_reference(const test_model* model, test_inputs* inputs,
                               kvevict_evict_options* options);

/* Stores and notes the rows of the next n tokens in every layer. */
void test_model_store(test_model* model, uint32_t n);
void test_model_append(test_model* model, uint32_t n);

/* Observes the query rows of [first, first + n) in every layer. */
void test_model_observe(test_model* model, uint32_t first, uint32_t n);

/* Observes scores of [first, first + n) in every layer, for policy custom. They
 * depend on layer, head and position alone. */
float test_model_score(uint32_t layer, uint32_t head, uint32_t position);
kvevict_status test_model_give_scores(test_model* model, uint32_t first,
                                      uint32_t n);

/* Observes and appends the next n tokens. */
void test_model_step(test_model* model, uint32_t n);

/* Evicts in a workspace of guard bytes and checks the end of it. Asks for the
 * report unless it is NULL. */
kvevict_status test_model_evict(test_model* model,
                                const kvevict_evict_options* options,
                                kvevict_evict_report* report);

/* The context length that budgets refer to: tokens seen, at most max_tokens. */
uint32_t test_model_context(const test_model* model);

/* The most that a head of the layer holds. */
uint32_t test_model_stored(const test_model* model, uint32_t layer);
uint32_t test_model_stored_of(const test_model* model, uint32_t layer,
                              uint32_t head);

/* The bytes of one head's row in all planes of a layer. */
uint32_t test_model_row_bytes(const test_model* model, uint32_t layer);

/* Writes positions[stored_of] of a layer and head. */
void test_model_positions(const test_model* model, uint32_t layer,
                          uint32_t head, int32_t* positions);

/* Writes the slots of `before`[n_before], the positions held earlier, that a
 * layer and head still holds; returns how many. Fails if it holds another
 * position. */
uint32_t test_model_kept_slots(const test_model* model, uint32_t layer,
                               uint32_t head, const int32_t* before,
                               uint32_t n_before, int32_t* slots);

/* Fails unless all answers about positions and slots agree, and every slot
 * holds the rows of its position. */
void test_model_check(const test_model* model, const char* what);

/* The oracle's raw weights as scores of a layer's live cache: [n_kv_heads,
 * stored] doubles. */
void test_model_oracle_scores(const test_model* model, uint32_t layer,
                              double* scores);

/* The scores of one head: [stored_of]. */
void test_model_oracle_scores_of(const test_model* model, uint32_t layer,
                                 uint32_t head, double* scores);

/* Reads as f32 what a head held before any eviction: queries [group, n_seen,
 * k_head_dim], keys [n_seen, k_head_dim], and the norms of its values [n_seen].
 */
void test_model_read_rows(const test_model* model, uint32_t layer,
                          uint32_t head, float* queries, float* keys,
                          double* value_norms);

/* The oracle's measures of a layer's live cache and queries; `ends` is a mean
 * over rows and query heads. */
oracle_measure test_model_measure(const test_model* model, uint32_t layer);

/* Marks what must stay of a layer and head: forced[stored_of] of 0 and 1. The
 * options have the protected positions. */
void test_model_forced(const test_model* model, uint32_t layer, uint32_t head,
                       const kvevict_evict_options* options, uint8_t* forced);

/* Fails unless both models hold the same tokens in every layer and head. */
void test_expect_same_tokens(const test_model* a, const test_model* b,
                             const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MODEL_H_ */
