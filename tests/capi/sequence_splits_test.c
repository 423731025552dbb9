/* Budgets of layers that depend on all layers' weights, against the oracle. */
#include <math.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/mixed.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/compact.h"

enum { kLayers = 5, kHeads = 2, kTokens = 400 };

/* The layers' queries differ in length, so their entropies and variances differ. */
static test_model* Model(const char* policy, uint32_t n_layers, uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = n_layers;
  spec.max_tokens = spec.max_positions = kTokens;
  spec.n_threads = 1 + (uint32_t)(seed % 3);
  test_model* m = test_model_create(&spec, (test_random){seed});
  const uint32_t size = oracle_element_bytes(spec.q_dtype);
  for (uint32_t l = 0; l < n_layers; ++l) {
    const size_t n =
        (size_t)spec.max_positions * spec.n_q_heads * spec.k_head_dim;
    for (size_t i = 0; i < n; ++i) {
      uint8_t* const q = m->queries[l] + i * size;
      const float factor = ldexpf(1.0f, (int)((l * 7 + seed) % 5) - 2);
      test_store(spec.q_dtype, factor * test_load(spec.q_dtype, q), q);
    }
  }
  return m;
}

/* How many blocks layers keep by the oracle's measures. Returns how far a number is
 * from being another one. */
static double Expected(const oracle_policy* p, const oracle_measure* measures,
                       uint32_t n_layers, uint32_t n_context,
                       uint32_t n_protected, uint64_t* budgets) {
  const double wanted = p->budget > 1 ? p->budget : p->budget * n_context;
  const uint32_t budget = wanted < n_context ? (uint32_t)wanted : n_context;
  double nearest = 1.0;
  if (budget == n_context) {
    for (uint32_t l = 0; l < n_layers; ++l) budgets[l] = n_context;
    return nearest;
  }
  if (p->split == ORACLE_SPLIT_LAZY) {
    for (uint32_t l = 0; l < n_layers; ++l) {
      const double apart = measures[l].ends - p->lazy;
      nearest = fmin(nearest, fabs(apart));
      budgets[l] = apart > 0 ? budget : n_context;
    }
    return nearest;
  }
  const uint32_t recent = p->recent > p->window ? p->recent : p->window;
  const uint32_t least = p->sink + recent + n_protected;
  double preferences[TEST_MAX_LAYERS] = {0.0};
  for (uint32_t l = 0; l < n_layers; ++l) {
    preferences[l] = pow(measures[l].entropy, 1.0 / p->tau1) *
                     pow(measures[l].variance, 1.0 / p->tau2);
  }
  nearest = oracle_split_cake(preferences, n_layers,
                              (uint64_t)(budget - least) * n_layers,
                              n_context - least, budgets);
  for (uint32_t l = 0; l < n_layers; ++l) budgets[l] += least;
  return nearest;
}

TestSuite(splits);

/* Layers differ in heads and head sizes. Those without a cache do not count. */
Test(splits, layers_may_differ) {
  test_random random = test_random_start("splits/layers_may_differ");
  int n_must = 0;
  for (int i = 0; i < 30; ++i) {
    const char* const text =
        i % 2 == 0 ? "cake:budget=30,window=8"
                   : "snapkv:budget=30,window=8,split=lazy,lazy=.3";
    test_mixed* m = test_mixed_draw_for(text, &random, false);
    for (uint32_t l = 0; l < m->n_layers; ++l) {
      strcpy(m->policies[l], "snapkv:budget=30,window=8");
    }
    test_mixed_open(m, text, NULL, &random);
    test_mixed_step(m, 90);
    const oracle_policy policy = oracle_policy_from(text);
    oracle_measure measures[TEST_MAX_LAYERS];
    uint32_t full[TEST_MAX_LAYERS], n_full = 0;
    for (uint32_t l = 0; l < m->n_layers; ++l) {
      if (!test_mixed_is_full(m, l)) continue;
      test_model alike = *m->alike[l];
      alike.policy = policy;
      measures[n_full] = test_model_measure(&alike, l);
      full[n_full++] = l;
    }
    uint64_t budgets[TEST_MAX_LAYERS];
    const bool must =
        Expected(&policy, measures, n_full, 90, 0, budgets) > 1e-5;
    EXPECT_OK(test_mixed_evict(m, NULL, &random));
    for (uint32_t f = 0; must && f < n_full; ++f) {
      uint32_t stored = 0;
      EXPECT_OK(
          kvevict_sequence_stored_length(m->sequence, full[f], 0, &stored));
      EXPECT(stored == budgets[f], "%s: layer %u keeps %u, not %llu", text,
             full[f], stored, (unsigned long long)budgets[f]);
    }
    n_must += must;
    test_mixed_destroy(m);
  }
  cr_expect_geq(n_must, 27);
}

/* A key that is NaN leaves its layer without a preference. */
Test(splits, a_layer_of_nan_keeps_the_least) {
  for (int all = 0; all < 2; ++all) {
    test_model* m = Model("cake:budget=40,window=8", 3, 5);
    for (uint32_t l = 0; l < 3; ++l) {
      if (l != 1 && !all) continue;
      test_cache* cache = m->archive[l];
      const float nan = NAN;
      for (uint32_t h = 0; h < kHeads; ++h) {
        for (uint32_t b = 0; b < 4; ++b) {
          *oracle_row_byte(&cache->view, &cache->view.k, 20, h, b) =
              ((const uint8_t*)&nan)[b];
        }
      }
    }
    test_model_step(m, 100);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    cr_expect_eq(test_model_stored(m, 1), all ? 40 : 8);
    cr_expect_eq(test_model_stored(m, 0) + test_model_stored(m, 2),
                 all ? 80 : 112);
    test_model_check(m, "nan");
    test_model_destroy(m);
  }
}

/* ---- What is refused ---- */

Test(splits, policies_that_measure_nothing_are_refused) {
  static const struct {
    const char* text;
    const char* what;
    const char* number;
  } kCases[] = {
      {"knorm:sink=0,split=cake", "split cake", "key norm"},
      {"streaming-llm:split=lazy", "split lazy", "position"},
      {"h2o:split=cake", "split cake", "accumulated attention"},
      {"cake:window=1", "window 1", "[2, 64]"},
      {"cake:window=65", "window 65", "[2, 64]"},
      {"snapkv:spread=1,window=1", "spread 1", "[2, 64]"},
      {"snapkv:spread=2,rows=sum", "spread 2", "rows mean"},
      {"cake:spread=0,rows=max", "split cake", "rows mean"},
      {"snapkv:split=lazy,row_weight=past", "split lazy", "row_weight none"},
      {"snapkv:split=lazy,group=max,order=reduce-logits", "split lazy",
       "reduce-logits"},
      {"cake:scope=model", "split cake", "scope model"},
      {"cake:budget=32", "window 32", "budget 32"},
      {"snapkv:budget=35,split=lazy", "window 32", "> budget 35"},
  };
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    EXPECT_NO_POLICY(kCases[i].text, kCases[i].what, kCases[i].number);
  }
  kvevict_policy* lazy = test_policy("snapkv:budget=36,split=lazy");
  EXPECT_OK(kvevict_policy_validate(lazy));
}

Test(splits, doors_that_know_one_layer_say_so) {
  static const char* const kPolicies[] = {"cake:budget=40,window=8",
                                          "snapkv:budget=40,split=lazy"};
  for (int p = 0; p < 2; ++p) {
    const kvevict_policy* policy = test_policy(kPolicies[p]);
    uint32_t budgets[3] = {7, 7, 7};
    EXPECT_FAILS(kvevict_policy_layer_budgets(policy, 100, budgets, 3),
                 KVEVICT_ERROR_UNSUPPORTED, "split", "scores decide");
    cr_expect_eq(budgets[0], 7);
    EXPECT_OK(kvevict_policy_layer_budgets(policy, 40, budgets, 3));
    cr_expect_eq(budgets[2], 40);
    test_model* m = Model(kPolicies[p], 2, 1);
    EXPECT_FAILS(kvevict_plan_layer_budgets(m->plan, 100, budgets, 2),
                 KVEVICT_ERROR_UNSUPPORTED, "split", "scores decide");
    kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
    kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
    EXPECT_FAILS(kvevict_plan_selection(m->plan, 1, 100, 0, &options, &keep),
                 KVEVICT_ERROR_UNSUPPORTED, "layer 1", "all layers");
    kvevict_plan* plan = NULL;
    kvevict_plan_options table = KVEVICT_PLAN_OPTIONS_INIT;
    const uint32_t heads[4] = {1, 2, 3, 4};
    table.head_budgets = heads;
    table.head_budgets_len = 4;
    EXPECT_INVALID(
        kvevict_plan_create(m->context, &m->geometry, policy, &table, &plan),
        "head_budgets", "split");
    test_model_destroy(m);
  }
}
