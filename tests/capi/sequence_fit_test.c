/* Evictions that fit values or merge rows: sinks, threads, and what is refused.
 * sequence_life_test.c compares them with the oracle under any policy. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/merged.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

/* Sinks take a part of each softmax before and after, and logits are capped. */
Test(sequence_fit, sinks_and_capped_logits_count) {
  static test_held held;
  static const char* const kPolicy = "snapkv:budget=50,window=8,fit=values";
  test_model* m = test_model_of(kPolicy, 1);
  float sinks[2 * 4];
  for (int i = 0; i < 8; ++i) sinks[i] = 0.5f * (float)(i % 5) - 0.5f;
  m->layer.logit_softcap = 2;
  kvevict_geometry geometry = m->geometry;
  geometry.layers = &m->layer;
  geometry.sink_logits = sinks;
  geometry.sink_logits_len = 8;
  EXPECT_OK(test_model_go_on(m, kPolicy, &geometry, NULL));
  test_model_step(m, 90);
  test_hold(m, &held);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_changes sum = {0};
  test_expect_changes(m, &held, sinks, &sum, "sinks");
  EXPECT(sum.most_fitted > 100, "changes are at most %g bounds",
         sum.most_fitted);
  test_held_free(m, &held);
  test_model_destroy(m);
}

/* The same bytes with any number of threads, and from run to run. */
Test(sequence_fit, threads_do_not_matter) {
  static const char* const kAll[] = {
      "snapkv:budget=30,window=16,fit=values",
      "knorm:budget=45,heads=adaptive,reference=12,fit=values",
      "keydiff:budget=45,heads=adaptive,reference=12,fit=bias-values"};
  for (int i = 0; i < 3; ++i) {
    test_cache* first[2] = {NULL, NULL};
    for (uint32_t n_threads = 1; n_threads < 5; ++n_threads) {
      test_model_spec spec = test_small_model(kAll[i]);
      spec.n_threads = n_threads;
      spec.n_companions = i == 2;
      test_model* m = test_model_create(&spec, (test_random){3});
      for (uint32_t l = 0; i == 2 && l < 2; ++l) {
        m->live[l]->companions[0].role = KVEVICT_ROLE_BIAS;
      }
      test_model_step(m, 90);
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      test_inputs inputs;
      if (i >= 1) test_model_give_reference(m, &inputs, &options);
      EXPECT_OK(test_model_evict(m, &options, NULL));
      for (uint32_t l = 0; l < 2; ++l) {
        if (n_threads == 1) {
          first[l] = test_cache_clone(m->live[l]);
        } else {
          test_expect_same_bytes(m->live[l], first[l], kAll[i]);
        }
      }
      test_model_destroy(m);
    }
    test_cache_destroy(first[0]);
    test_cache_destroy(first[1]);
  }
}

/* ---- What is refused ---- */

Test(sequence_fit, policies_say_what_does_not_go_together) {
  static const struct {
    const char *text, *key, *why;
  } kRows[] = {
      {"knorm:fit=values", "fit values needs reference", "knorm has no window"},
      {"streaming-llm:fit=values", "fit values needs reference",
       "streaming-llm"},
      {"snapkv:fit=values,merge=values", "fit values", "merge"},
      {"snapkv:fit=values,rotate=yes", "fit values", "rotate yes"},
      {"knorm:reference=4", "reference 4 without fit", "knorm"},
      {"snapkv:fit=bias", "fit=\"bias\"", "none|values|bias-values"},
      {"knorm:fit=bias-values", "fit values needs reference", "no window"},
      {"snapkv:fit_ridge=0", "fit_ridge=\"0\"", "a number in (0"}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    kvevict_policy* policy = NULL;
    EXPECT_INVALID(kvevict_policy_create(kRows[i].text, &policy), kRows[i].key,
                   kRows[i].why);
  }
}

Test(sequence_fit, policies_say_what_fitting_needs) {
  static const struct {
    const char* text;
    kvevict_need rows, queries, reference;
  } kRows[] = {{"snapkv:fit=values", KVEVICT_NEED_REQUIRED,
                KVEVICT_NEED_REQUIRED, KVEVICT_NEED_NONE},
               {"snapkv:reference=4,fit=values", KVEVICT_NEED_REQUIRED,
                KVEVICT_NEED_NONE, KVEVICT_NEED_REQUIRED},
               {"random:reference=4,fit=values", KVEVICT_NEED_REQUIRED,
                KVEVICT_NEED_NONE, KVEVICT_NEED_REQUIRED},
               {"random:fit=none", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE,
                KVEVICT_NEED_NONE}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    const kvevict_policy* policy = test_policy(kRows[i].text);
    const struct {
      kvevict_input input;
      kvevict_need need;
    } kNeeds[] = {{KVEVICT_INPUT_KEYS, kRows[i].rows},
                  {KVEVICT_INPUT_VALUES, kRows[i].rows},
                  {KVEVICT_INPUT_QUERIES, kRows[i].queries},
                  {KVEVICT_INPUT_REFERENCE_QUERIES, kRows[i].reference}};
    for (int j = 0; j < 4; ++j) {
      kvevict_need need = -1;
      EXPECT_OK(kvevict_policy_need(policy, kNeeds[j].input, &need));
      cr_expect_eq(need, kNeeds[j].need, "%s: input %d", kRows[i].text,
                   kNeeds[j].input);
    }
  }
}

Test(sequence_fit, rows_that_cannot_be_read_are_refused) {
  static const char* const kFit =
      "streaming-llm:budget=40,reference=6,fit=values";
  static const char* const kValues = "streaming-llm:budget=40,merge=values";
  static const char* const kPivot = "streaming-llm:budget=40,merge=pivot";
  static const struct {
    const char* policy;
    kvevict_dtype dtype;
    uint32_t v_head_dim;
    const char *what, *reason;
  } kRows[] = {
      {kFit, KVEVICT_DTYPE_F16, 8, NULL, ""},
      {kFit, KVEVICT_DTYPE_OPAQUE, 8, "cannot fit values", "k_dtype"},
      {kFit, KVEVICT_DTYPE_I8, 8, "cannot fit values", "fits take keys of f32"},
      {kFit, KVEVICT_DTYPE_F16, 0, "cannot fit values", "v_head_dim"},
      {kValues, KVEVICT_DTYPE_OPAQUE, 8, "cannot merge", "k_dtype"},
      {kPivot, KVEVICT_DTYPE_OPAQUE, 8, "cannot merge", "k_dtype"},
      {kValues, KVEVICT_DTYPE_I8, 8, "cannot merge", "k_dtype is quantized"},
      {kPivot, KVEVICT_DTYPE_FP8_E5M2, 8, "cannot merge",
       "k_dtype is quantized"},
      {kValues, KVEVICT_DTYPE_F16, 0, "cannot merge", "v_head_dim"},
      {kPivot, KVEVICT_DTYPE_F16, 0, NULL, ""},
      {kValues, KVEVICT_DTYPE_F16, 8, NULL, ""}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    test_expect_reads(kRows[i].policy, kRows[i].dtype, kRows[i].v_head_dim,
                      kRows[i].what, kRows[i].reason);
  }
}

Test(sequence_fit, evictions_say_what_is_missing) {
  test_model_spec spec =
      test_small_model("keydiff:sink=0,budget=40,reference=5,fit=values");
  spec.has_destinations = 1;
  test_model* m = test_model_create(&spec, (test_random){8});
  test_model_append(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "reference_queries is NULL", "reference 5");
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_model_give_reference(m, &inputs, &options);
  inputs.inputs[1].n_reference_rows = 4;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "n_reference_rows 4");
  inputs.inputs[1].n_reference_rows = 5;
  options.destinations = m->views;
  options.destinations_len = 2;
  EXPECT_INVALID(test_model_evict(m, &options, NULL),
                 "destinations with fit=values");
  options.destinations = NULL;
  options.destinations_len = 0;
  static uint8_t undo[1 << 20] __attribute__((aligned(64)));
  options.undo = undo;
  options.undo_bytes = sizeof undo;
  EXPECT_FAILS(test_model_evict(m, &options, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "undo", "fit=values");
  cr_expect_eq(test_model_stored(m, 0), 80);
  test_model_check(m, "after errors");
  test_model_destroy(m);
}

/* Four query heads of two KV heads: twice as many queries as the policy names. */
Test(sequence_fit, too_many_queries_are_refused) {
  for (int over = 0; over < 2; ++over) {
    test_model* m = test_model_of("knorm:budget=40", 9);
    kvevict_plan* plan = NULL;
    const kvevict_policy* policy =
        test_policy(over ? "knorm:budget=40,reference=2049,fit=values"
                         : "knorm:budget=40,reference=2048,fit=values");
    const kvevict_status status =
        kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan);
    EXPECT((status == KVEVICT_OK) == !over, "%d", status);
    if (over) {
      EXPECT_INVALID(
          kvevict_plan_create(m->context, &m->geometry, policy, NULL, &plan),
          "layer 0", "2049 queries of each of 2 query heads: 4098 > 4096");
    }
    kvevict_plan_destroy(plan);
    test_model_destroy(m);
  }
}
