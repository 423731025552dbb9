/* Two stages of selection, and heads that compete by scores, edge by edge.
 * sequence_life_test.c has random ones. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/choice.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/head_split.h"
#include "tests/oracle/select.h"

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

/* ---- What is protected ---- */

/* Sinks and last tokens stay once, protected or not. */
Test(protection, of_what_stays_anyway_changes_nothing) {
  static const char* const kTexts[] = {
      "custom:budget=20,sink=4,recent=4,heads=adaptive-blend,floor=1",
      "custom:budget=20,sink=4,recent=4,heads=adaptive-blend,floor=0.3",
      "custom:budget=20,sink=4,recent=4,heads=adaptive,normalize=yes"};
  static const int32_t kEnds[] = {0, 1, 2, 3, 38, 39};
  for (int i = 0; i < 3; ++i) {
    int32_t kept[2][kHeads][kRow];
    uint32_t n_kept[2][kHeads];
    for (int is_protected = 0; is_protected < 2; ++is_protected) {
      test_random random = {5};
      given g;
      Start(&g, kTexts[i], 40, 1);
      for (uint32_t h = 0; h < kHeads; ++h) {
        for (uint32_t t = 0; t < 40; ++t) {
          const float score =
              expf(test_random_normal(&random) * (float)(1 + h));
          for (int l = 0; l < kLayers; ++l) g.scores[l][h][t] = score;
        }
      }
      if (is_protected) {
        g.options.protected_positions = kEnds;
        g.options.protected_positions_len = 6;
      }
      EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
      for (uint32_t h = 0; h < kHeads; ++h) {
        const uint32_t n = test_model_stored_of(g.m, 0, h);
        EXPECT(i > 0 || n == 20, "%s: head %u keeps %u", kTexts[i], h, n);
        test_model_positions(g.m, 0, h, kept[is_protected][h]);
        n_kept[is_protected][h] = n;
      }
      test_model_destroy(g.m);
    }
    for (uint32_t h = 0; h < kHeads; ++h) {
      EXPECT(n_kept[0][h] == n_kept[1][h] &&
                 memcmp(kept[0][h], kept[1][h],
                        n_kept[0][h] * sizeof(int32_t)) == 0,
             "%s: head %u keeps %u, with protection %u", kTexts[i], h,
             n_kept[0][h], n_kept[1][h]);
    }
  }
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

/* It decides how many tokens a head keeps. Which ones is up to the scores, even if
 * they are refined after the first stage. */
Test(normalize, leaves_refined_scores_as_they_are) {
  static const float kScores[] = {10, 4, 3, 1}, kWeights[] = {1, 1, 1.24f, 1};
  static const char* const kTexts[] = {
      "custom:budget=2,sink=0,recent=0,heads=adaptive-blend,normalize=yes,"
      "weight=given,epsilon=1,secure=0.5",
      "custom:budget=20,sink=0,recent=2,heads=adaptive,normalize=yes,"
      "weight=given,epsilon=0.5,secure=0.3"};
  test_random random = test_random_start("normalize refined");
  for (int i = 0; i < 40; ++i) {
    given g;
    const uint32_t n = i == 0 ? 4 : 60;
    Start(&g, kTexts[i > 0], n, 1);
    const oracle_policy* const p = &g.m->policy;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 0; t < n; ++t) {
        const float score = expf(test_random_normal(&random) * (float)(1 + h));
        const float weight = fabsf(test_random_normal(&random));
        for (int l = 0; l < kLayers; ++l) {
          g.scores[l][h][t] = i == 0 ? kScores[t] : score;
          g.weights[l][h][t] = i == 0 ? kWeights[t] : weight;
        }
      }
    }
    const int32_t protect[] = {30};
    if (i % 2 == 1) {
      g.options.protected_positions = protect;
      g.options.protected_positions_len = 1;
    }
    const given before = g;
    EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
    for (uint32_t h = 0; h < kHeads; ++h) {
      int32_t kept[kRow], expected[kRow];
      uint8_t forced[kRow] = {0};
      const int32_t ranks[kRow] = {0};
      for (uint32_t t = n - p->recent; t < n; ++t) forced[t] = 1;
      if (i % 2 == 1) forced[protect[0]] = 1;
      const uint32_t n_kept = test_model_stored_of(g.m, 1, h);
      test_keep_in_stages(p, before.scores[1][h], before.weights[1][h], ranks,
                          n, forced, n_kept, i == 0 ? 0 : 4, expected);
      test_model_positions(g.m, 1, h, kept);
      for (uint32_t k = 0; k < n_kept; ++k) {
        EXPECT(kept[k] == expected[k], "case %d, head %u: %d, not %d", i, h,
               kept[k], expected[k]);
      }
      EXPECT(i > 0 || (n_kept == 2 && kept[0] == 0 && kept[1] == 1),
             "head %u keeps %u", h, n_kept);
    }
    test_model_destroy(g.m);
  }
}

/* Heads keep their best with scores of 0, negative sums, infinities and NaN. */
Test(normalize, never_turns_a_head_round) {
  static const float kOf[][3] = {
      {0, 0, 0}, {-1, -2, -3}, {5, -3, -4}, {INFINITY, 1, 0}, {NAN, 1, 2}};
  for (int i = 0; i < 5; ++i) {
    given g;
    Start(&g, "custom:budget=10,sink=1,heads=adaptive-blend,normalize=yes", 60,
          1);
    for (int l = 0; l < kLayers; ++l) {
      for (int t = 0; t < 60; ++t) {
        g.scores[l][0][t] = kOf[i][t % 3];
        g.scores[l][1][t] = (float)(t % 7);
      }
    }
    const given before = g;
    EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
    for (uint32_t h = 0; h < kHeads; ++h) {
      int32_t kept[kRow], expected[kRow];
      uint8_t forced[kRow] = {1};
      const uint32_t n = test_model_stored_of(g.m, 0, h);
      test_model_positions(g.m, 0, h, kept);
      oracle_select(before.scores[0][h], 60, n, forced,
                    KVEVICT_TIE_LOWER_POSITION, expected);
      for (uint32_t k = 0; k < n; ++k) {
        EXPECT(kept[k] == expected[k], "case %d, head %u: %d, not %d", i, h,
               kept[k], expected[k]);
      }
    }
    test_model_check(g.m, "normalized");
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
