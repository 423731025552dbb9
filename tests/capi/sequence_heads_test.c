/* Policies whose scores decide how many tokens a head keeps, edge by edge.
 * sequence_life_test.c has random sequences. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kHeads = 2, kLayers = 2, kRow = 100 };

/* A model of n tokens whose evictions are given `scores`. */
typedef struct given {
  test_model* m;
  float scores[kLayers][kHeads][kRow];
  kvevict_evict_options options;
  test_inputs inputs;
} given;

static void Start(given* g, const char* policy, uint32_t n) {
  const test_model_spec spec = test_small_model(policy);
  memset(g, 0, sizeof *g);
  g->m = test_model_create(&spec, (test_random){7});
  g->options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
  test_give_scores(&g->options, &g->inputs, kLayers, g->scores[0][0],
                   kHeads * kRow, kRow);
  test_model_append(g->m, n);
}

static void ExpectCounts(const given* g, uint32_t a, uint32_t b,
                         const char* what) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t n[2] = {test_model_stored_of(g->m, l, 0),
                           test_model_stored_of(g->m, l, 1)};
    EXPECT(n[0] == a && n[1] == b, "%s: heads of layer %u hold %u and %u", what,
           l, n[0], n[1]);
  }
  test_model_check(g->m, what);
}

/* Layers with one cache keep what the first one's scores say. */
Test(heads, layers_of_one_cache_share_its_counts) {
  given g;
  Start(&g, "custom:sink=0,budget=20,heads=adaptive", 70);
  for (int t = 0; t < 70; ++t) {
    g.scores[0][0][t] = (float)t;
    g.scores[0][1][t] = t < 12 ? 1000.0f : -1.0f;
    g.scores[1][1][t] = 1e6f;
  }
  g.m->views[1] = g.m->views[0];
  for (int i = 0; i < 2; ++i) {
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EXPECT_OK(test_model_evict(g.m, &g.options, &report));
    cr_expect_eq(report.tokens_after, 28);
    for (uint32_t l = 0; l < 2; ++l) {
      cr_expect_eq(test_model_stored_of(g.m, l, 0), 28);
      cr_expect_eq(test_model_stored_of(g.m, l, 1), 12);
    }
    if (i == 1) break;
    EXPECT_OK(kvevict_sequence_append(g.m->sequence, 20, NULL));
    for (int t = 0; t < kRow; ++t) {
      g.scores[0][0][t] = t < 28 ? 5.0f : 0.0f;
      g.scores[0][1][t] = t < 12 ? 5.0f : 0.0f;
    }
  }
  test_model_destroy(g.m);
}

Test(heads, a_budget_must_hold_what_must_stay) {
  given g;
  Start(&g, "custom:budget=20,sink=4,recent=6,heads=adaptive", 70);
  const int32_t protect[12] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  g.options.protected_positions = protect;
  g.options.protected_positions_len = 11;
  EXPECT_INVALID(test_model_evict(g.m, &g.options, NULL), "layer 0",
                 "budget 20", "sink 4", "recent 6", "11 protected");
  ExpectCounts(&g, 70, 70, "refused");
  g.options.protected_positions_len = 10;
  EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
  ExpectCounts(&g, 20, 20, "just enough");
  test_model_destroy(g.m);
}

Test(heads, other_scopes_and_tables_are_refused) {
  kvevict_policy* p = test_policy("tova");
  EXPECT_OK(kvevict_policy_set(p, "heads", "adaptive"));
  EXPECT_INVALID(kvevict_policy_validate(p), "heads that are not equal",
                 "scope layer");
  EXPECT_OK(kvevict_policy_set(p, "scope", "model"));
  EXPECT_INVALID(kvevict_policy_validate(p), "scope model");
  EXPECT_OK(kvevict_policy_set(p, "scope", "head"));
  EXPECT_OK(kvevict_policy_validate(p));

  test_model* m = test_model_of("custom:sink=0,heads=threshold", 1);
  const uint32_t budgets[4] = {1, 2, 3, 4};
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets = budgets;
  options.head_budgets_len = 4;
  kvevict_plan* plan;
  GUARD(plan);
  EXPECT_INVALID(kvevict_plan_create(m->context, &m->geometry, m->policy_handle,
                                     &options, &plan),
                 "head_budgets", "heads that are not equal");
  EXPECT_UNTOUCHED(plan);
  test_model_destroy(m);
}
