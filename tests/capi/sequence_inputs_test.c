/* Inputs handed to an eviction take the place of observed ones. */
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/mixed.h"
#include "tests/capi/support/plan.h"

enum { kWindow = 8, kTokens = 100 };

static test_model* Model(const char* policy) {
  const test_model_spec spec = test_small_model(policy);
  return test_model_create(&spec, (test_random){1});
}

/* Gives the window's rows of the layers whose bits are set. */
static void GiveQueries(const test_model* m, kvevict_evict_options* options,
                        test_inputs* given, uint32_t layers) {
  test_give_scores(options, given, m->spec.n_layers, NULL, 0, 0);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    given->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    if ((layers >> l & 1) == 0) continue;
    given->planes[l] = test_model_queries(m, l, m->n_seen - kWindow);
    given->inputs[l].queries = &given->planes[l];
  }
}

static const char* const kPolicy = "snapkv:budget=60,window=8";

/* sequence_life_test.c hands over those of some layers. */
Test(inputs, queries_handed_over_need_no_memory) {
  test_model* m = Model(kPolicy);
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  test_model_append(m, kTokens);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs given;
  GiveQueries(m, &options, &given, 3);
  EXPECT_OK(test_model_evict(m, &options, NULL));
  cr_expect_eq(test_model_stored(m, 0), 60);
  test_model_destroy(m);
}

/* Strides are free. Rows have their layer's head size and dtype. */
Test(inputs, queries_are_handed_over_where_layers_differ) {
  test_random random = test_random_start("inputs of layers");
  for (int trial = 0; trial < 20; ++trial) {
    test_mixed* m = test_mixed_draw(&random, false);
    test_mixed_open(m, kPolicy, NULL, &random);
    test_mixed_append(m, kTokens);
    test_inputs given;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_give_scores(&options, &given, m->n_layers, NULL, 0, 0);
    for (uint32_t l = 0; l < m->n_layers; ++l) {
      given.inputs[l].scores = NULL;
      if (m->alike[l] == NULL) continue;
      test_model_observe(m->alike[l], kTokens - kWindow, kWindow);
      given.planes[l] = test_model_queries(m->alike[l], l, kTokens - kWindow);
      given.inputs[l].queries = &given.planes[l];
    }
    EXPECT_OK(test_mixed_evict(m, &options, &random));
    for (uint32_t l = 0; l < m->n_layers; ++l) {
      if (m->alike[l] == NULL) continue;
      EXPECT_OK(test_model_evict(m->alike[l], NULL, NULL));
      test_mixed_expect_alike(m, l, "handed over");
    }
    test_mixed_destroy(m);
  }
}

/* Log-sum-exps are checked, but the CPU does not read them. */
Test(inputs, log_sum_exps_come_along) {
  test_model *m = Model(kPolicy), *observed = Model(kPolicy);
  static float lse[4 * kWindow];
  for (int i = 0; i < 4 * kWindow; ++i) lse[i] = 1e9f;
  kvevict_plane rows = test_floats_plane(lse, kWindow);
  test_model_append(m, kTokens);
  test_model_step(observed, kTokens);
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs given;
  GiveQueries(m, &options, &given, 3);
  given.inputs[1].row_lse = &rows;
  rows.head_dim = 2;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "inputs[1]",
                 "row_lse.head_dim 2");
  rows.head_dim = 1;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  EXPECT_OK(test_model_evict(observed, NULL, NULL));
  test_expect_same_tokens(m, observed, "with log-sum-exps");
  test_model_destroy(m);
  test_model_destroy(observed);
}

/* Inputs that the policy's signal does not need are allowed and not read. */
Test(inputs, that_are_of_no_use_are_not_read) {
  static const char* const kOthers[] = {
      "none", "streaming-llm:budget=60", "random:sink=0,budget=60",
      "knorm:sink=0,budget=60", "snapkv:budget=60,window=8"};
  const kvevict_plane nowhere = {
      .data = 8, .token_stride_bytes = -3, .dtype = 77, .head_dim = 5};
  for (int p = 0; p < 5; ++p) {
    test_model *m = Model(kOthers[p]), *without = Model(kOthers[p]);
    test_model_step(m, kTokens);
    test_model_step(without, kTokens);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs given;
    GiveQueries(m, &options, &given, 0);
    for (int l = 0; l < 2; ++l) {
      given.inputs[l].scores = &nowhere;
      given.inputs[l].query_mean = given.inputs[l].query_covariance =
          given.inputs[l].token_weights = &nowhere;
      if (p < 4) given.inputs[l].queries = given.inputs[l].row_lse = &nowhere;
    }
    EXPECT_OK(test_model_evict(m, &options, NULL));
    EXPECT_OK(test_model_evict(without, NULL, NULL));
    test_expect_same_tokens(m, without, kOthers[p]);
    test_model_destroy(m);
    test_model_destroy(without);
  }
}

/* `change` to good inputs makes the eviction fail; nothing moves. */
#define EXPECT_BREAKS(change, ...)                                    \
  do {                                                                \
    test_model* m = Model(kPolicy);                                   \
    test_model_append(m, kTokens);                                    \
    test_cache* before = test_cache_clone(m->live[0]);                \
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;       \
    test_inputs given;                                                \
    GiveQueries(m, &options, &given, 3);                              \
    kvevict_signal_inputs* in = given.inputs;                         \
    kvevict_plane* planes = given.planes;                             \
    change;                                                           \
    EXPECT_INVALID(test_model_evict(m, &options, NULL), __VA_ARGS__); \
    test_expect_same_bytes(m->live[0], before, #change);              \
    test_model_check(m, #change);                                     \
    (void)in, (void)planes;                                           \
    test_cache_destroy(before);                                       \
    test_model_destroy(m);                                            \
  } while (0)

/* score_errors_test.c has what else is wrong with planes. */
Test(inputs, that_are_bad_are_errors) {
  EXPECT_BREAKS(options.inputs = NULL, "inputs", "NULL", "2");
  EXPECT_BREAKS(options.inputs_len = 1, "inputs_len 1", "2");
  EXPECT_BREAKS(in[1].struct_size = 8, "inputs[1]", "struct_size 8");
  EXPECT_BREAKS(planes[1].token_stride_bytes = INT64_MAX, "inputs[1]",
                "queries", "64");
  /* Nothing was observed that could replace the missing input. */
  EXPECT_BREAKS(in[1].queries = NULL, "layer 1", "observed");
}

/* Gives the last n rows of both layers. */
static void GiveRows(const test_model* m, kvevict_evict_options* options,
                     test_inputs* given, uint32_t n, uint32_t n_query_rows) {
  GiveQueries(m, options, given, 0);
  for (uint32_t l = 0; l < 2; ++l) {
    given->planes[l] = test_model_queries(m, l, m->n_seen - n);
    given->inputs[l].queries = &given->planes[l];
    given->inputs[l].n_query_rows = n_query_rows;
  }
}

/* Heads of unequal lengths have no single number of slots. */
Test(inputs, rows_of_all_slots_are_those_of_every_head) {
  test_model* m = Model("h2o:budget=21,rows=mean,recent=2,heads=adaptive");
  test_model_append(m, kTokens);
  test_inputs given;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  GiveRows(m, &options, &given, kTokens, 0);
  EXPECT_OK(test_model_evict(m, &options, NULL));
  const uint32_t a = test_model_stored_of(m, 0, 0);
  const uint32_t b = test_model_stored_of(m, 0, 1);
  cr_assert_neq(a, b);
  test_model_append(m, 30);
  GiveRows(m, &options, &given, 60, 0);
  char numbers[60];
  snprintf(numbers, sizeof numbers, "n_query_rows 0, all slots: %u > %u stored",
           (a > b ? a : b) + 30, (a > b ? b : a) + 30);
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 0", numbers);
  GiveRows(m, &options, &given, 20, 20);
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_destroy(m);
}
