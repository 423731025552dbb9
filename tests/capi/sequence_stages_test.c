/* Two stages of selection, normalized heads, and heads that compete by scores: what is refused, and
 * small cases. sequence_life_test.c has random ones. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kLayers = 2, kHeads = 2, kRow = 100 };

/* A model whose evictions are given scores and weights. */
typedef struct given {
  test_model* m;
  float scores[kLayers][kHeads][kRow];
  float weights[kLayers][kHeads][kRow];
  kvevict_plane planes[kLayers];
  test_inputs inputs;
  kvevict_evict_options options;
} given;

static void Start(given* g, const char* policy, uint32_t n, uint64_t seed) {
  const test_model_spec spec = test_small_model(policy);
  memset(g, 0, sizeof *g);
  g->m = test_model_create(&spec, (test_random){seed});
  g->options = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
  test_give_scores(&g->options, &g->inputs, kLayers, g->scores[0][0],
                   kHeads * kRow, kRow);
  for (uint32_t l = 0; l < kLayers; ++l) {
    g->planes[l] = test_floats_plane(g->weights[l][0], kRow);
    g->inputs.inputs[l].token_weights = &g->planes[l];
  }
  test_model_append(g->m, n);
}

/* Nothing refines the scores here, or the context has only a few tokens. */
Test(stages, mean_nothing_where_scores_are_not_refined) {
  static const char* const kPairs[][2] = {
      {"snapkv:budget=40,window=8,secure=0.5", "snapkv:budget=40,window=8"},
      {"snapkv:budget=40,window=8,weight=norm,secure=1,heads=adaptive",
       "snapkv:budget=40,window=8,heads=adaptive"},
      {"knorm:sink=0,budget=1.5,weight=norm,epsilon=9,secure=0.5",
       "knorm:sink=0,budget=1.5,weight=norm,epsilon=9"}};
  for (int p = 0; p < 3; ++p) {
    for (uint32_t n = 2; n <= 90; n += 44) {
      if (p < 2 && n < 40) continue;
      test_model_spec spec = test_small_model(kPairs[p][0]);
      test_model* staged = test_model_create(&spec, (test_random){n});
      spec.policy = kPairs[p][1];
      test_model* plain = test_model_create(&spec, (test_random){n});
      test_model_step(staged, n);
      test_model_step(plain, n);
      EXPECT_OK(test_model_evict(staged, NULL, NULL));
      EXPECT_OK(test_model_evict(plain, NULL, NULL));
      test_expect_same_tokens(staged, plain, kPairs[p][0]);
      test_model_destroy(staged);
      test_model_destroy(plain);
    }
  }
}

Test(stages, redundancy_is_a_second_stage_too) {
  test_model_spec spec =
      test_small_model("snapkv:budget=40,window=8,redundancy=1,secure=1");
  test_model* all = test_model_create(&spec, (test_random){5});
  spec.policy = "snapkv:budget=40,window=8";
  test_model* plain = test_model_create(&spec, (test_random){5});
  test_model_step(all, 90);
  test_model_step(plain, 90);
  EXPECT_OK(test_model_evict(all, NULL, NULL));
  EXPECT_OK(test_model_evict(plain, NULL, NULL));
  test_expect_same_tokens(all, plain, "all are secured");
  test_model_destroy(all);
  test_model_destroy(plain);
}

Test(stages, other_scopes_blocks_and_thresholds_are_refused) {
  static const struct {
    const char* keys;
    const char* word;
  } kCases[] = {{"scope=layer", "scope layer"},
                {"scope=model", "scope model"},
                {"heads=threshold", "heads threshold"},
                {"select_block=4", "select_block"}};
  for (int i = 0; i < 4; ++i) {
    char text[80];
    snprintf(text, sizeof text, "knorm:sink=0,secure=0.5,%s", kCases[i].keys);
    EXPECT_NO_POLICY(text, "secure 0.5", kCases[i].word);
  }
}

Test(stages, are_an_evictions_and_need_the_weights) {
  given g;
  Start(&g, "custom:sink=0,budget=20,weight=given,secure=0.5", 80, 1);
  kvevict_select_options options = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_FAILS(kvevict_plan_selection(g.m->plan, 0, 80, 0, &options, &keep),
               KVEVICT_ERROR_UNSUPPORTED, "two stages");
  g.inputs.inputs[1].token_weights = NULL;
  EXPECT_INVALID(test_model_evict(g.m, &g.options, NULL), "layer 1",
                 "token_weights", "weight=given");
  cr_expect_eq(test_model_stored(g.m, 0), 80);
  test_model_destroy(g.m);
}

/* ---- normalize ---- */

/* A head whose sum is spread wide loses: 40 of 1 against 40 of 0.5 and 20 of 2. */
Test(normalize, favours_heads_whose_best_have_most) {
  static const char* const kTexts[] = {
      "custom:sink=0,budget=20,heads=adaptive,floor=0",
      "custom:sink=0,budget=20,heads=adaptive,floor=0,normalize=yes"};
  static const uint32_t kWant[2][2] = {{20, 20}, {1, 39}};
  for (int i = 0; i < 2; ++i) {
    given g;
    Start(&g, kTexts[i], 80, 1);
    for (int l = 0; l < kLayers; ++l) {
      for (int t = 0; t < 80; ++t) {
        g.scores[l][0][t] = 1; /* the best 20 of 80 have a quarter */
        /* The best 20 have 40 of 70. */
        g.scores[l][1][t] = t < 20 ? 2 : 0.5f;
      }
    }
    EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
    for (uint32_t h = 0; h < 2; ++h) {
      EXPECT(test_model_stored_of(g.m, 1, h) == kWant[i][h],
             "%s: head %u has %u", kTexts[i], h,
             test_model_stored_of(g.m, 1, h));
    }
    test_model_destroy(g.m);
  }
}

/* ---- Heads that share a budget ---- */

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

Test(heads, a_budget_must_hold_what_must_stay) {
  given g;
  Start(&g, "custom:budget=20,sink=4,recent=6,heads=adaptive", 70, 7);
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
