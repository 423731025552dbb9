/* Policies whose scores decide how many tokens a head keeps, edge by edge.
 * sequence_ragged_test.c has random sequences. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kHeads = 2, kLayers = 2, kRow = 100 };

static uint32_t Total(const test_model* m, uint32_t layer) {
  uint32_t n = 0;
  for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
    n += test_model_stored_of(m, layer, h);
  }
  return n;
}

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

/* Heads share equal scores alike, and the first tokens stay. */
Test(heads, equal_scores_are_chronological) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=20,heads=adaptive",
      "custom:sink=0,budget=20,heads=adaptive-blend",
      "custom:sink=0,budget=20,heads=threshold,threshold=-1"};
  static const float kScores[] = {0.0f, 3.0f, INFINITY, -0.0f};
  for (int p = 0; p < 3; ++p) {
    for (int s = 0; s < 4; ++s) {
      given g;
      Start(&g, kPolicies[p], 70);
      for (int l = 0; l < kLayers; ++l) {
        for (int h = 0; h < kHeads; ++h) {
          for (int i = 0; i < kRow; ++i) g.scores[l][h][i] = kScores[s];
        }
      }
      EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
      ExpectCounts(&g, 20, 20, kPolicies[p]);
      int32_t positions[20];
      test_model_positions(g.m, 1, 1, positions);
      for (int i = 0; i < 20; ++i) cr_expect_eq(positions[i], i);
      test_model_destroy(g.m);
    }
  }
}

/* With a budget of one token per head, every head keeps its own best one. */
Test(heads, keep_a_token_each_of_the_least_budget) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=3,split=geometric,alpha=0.01,heads=adaptive",
      "custom:sink=0,budget=3,split=geometric,alpha=0.01,heads=adaptive-blend",
      "custom:sink=0,budget=3,split=geometric,alpha=0.01,heads=threshold,"
      "threshold=9"};
  for (int p = 0; p < 3; ++p) {
    given g;
    Start(&g, kPolicies[p], 60);
    for (int l = 0; l < kLayers; ++l) {
      for (int h = 0; h < kHeads; ++h) g.scores[l][h][11 + 20 * h + 5 * l] = 1;
    }
    EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
    for (uint32_t h = 0; h < kHeads; ++h) {
      EXPECT(test_model_stored_of(g.m, 1, h) == 1, "%s", kPolicies[p]);
      int32_t position = -1;
      test_model_positions(g.m, 1, h, &position);
      EXPECT(position == (int32_t)(16 + 20 * h), "%s, head %u: %d",
             kPolicies[p], h, position);
    }
    test_model_check(g.m, kPolicies[p]);
    test_model_destroy(g.m);
  }
}

/* NaN loses against every number in any head, and reaches no threshold. */
Test(heads, nan_is_last) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=20,heads=adaptive",
      "custom:sink=0,budget=20,heads=adaptive-blend,floor=0",
      "custom:sink=0,budget=40,heads=threshold,threshold=-3.4e38"};
  static const uint32_t kCounts[3][2] = {{4, 36}, {1, 40}, {1, 40}};
  for (int p = 0; p < 3; ++p) {
    given g;
    Start(&g, kPolicies[p], 70);
    for (int l = 0; l < kLayers; ++l) {
      for (int i = 0; i < kRow; ++i) {
        g.scores[l][0][i] = NAN;
        g.scores[l][1][i] = -1e30f * (float)i;
      }
    }
    EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
    ExpectCounts(&g, kCounts[p][0], kCounts[p][1], kPolicies[p]);
    test_model_destroy(g.m);
  }
}

/* One head wins everything. The other keeps its floor, which includes what must stay. */
Test(heads, a_floor_is_kept_and_what_must_stay) {
  static const struct {
    const char* policy;
    uint32_t loser, winner;
  } kCases[] = {
      {"custom:sink=0,budget=20,heads=adaptive", 4, 36},
      {"custom:sink=0,budget=20,heads=adaptive,floor=0", 1, 39},
      {"custom:sink=0,budget=20,heads=adaptive,floor=1", 20, 20},
      {"custom:budget=20,sink=2,recent=1,heads=adaptive", 4, 36},
      {"custom:budget=20,sink=6,recent=4,heads=adaptive", 10, 30},
      {"custom:sink=0,budget=1.5,heads=adaptive", 1, 1},
      {"custom:sink=0,budget=60,heads=adaptive", 50, 70}, /* everything */
      {"custom:sink=0,budget=20,heads=adaptive-blend", 4, 36},
      {"custom:sink=0,budget=21,heads=adaptive-blend", 4, 38},
      {"custom:budget=20,sink=6,recent=4,heads=adaptive-blend", 12, 28},
      {"custom:sink=0,budget=20,heads=adaptive-blend,floor=0", 1, 40},
  };
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    given g;
    Start(&g, kCases[i].policy, 70);
    for (int l = 0; l < kLayers; ++l) {
      for (int t = 0; t < kRow; ++t) {
        g.scores[l][0][t] = (float)(t - 2000);
        g.scores[l][1][t] = (float)t;
      }
    }
    EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
    ExpectCounts(&g, kCases[i].loser, kCases[i].winner, kCases[i].policy);
    test_model_destroy(g.m);
  }
}

/* Halves round to even as in the authors' code: 5 and 15 of 10 won tokens give 7.5
 * and 12.5. */
Test(heads, a_blend_rounds_halves_to_even) {
  given g;
  Start(&g, "custom:sink=0,budget=10,heads=adaptive-blend,floor=0.5", 70);
  for (int l = 0; l < kLayers; ++l) {
    for (int t = 0; t < kRow; ++t) {
      g.scores[l][0][t] = t < 5 ? 2.0f : 0.0f;
      g.scores[l][1][t] = t < 15 ? 2.0f : 0.0f;
    }
  }
  EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
  ExpectCounts(&g, 8, 12, "halves");
  test_model_destroy(g.m);
}

/* A floor of 1 leaves nothing to compete for. */
Test(heads, a_floor_of_one_is_an_equal_split) {
  test_model_spec spec =
      test_small_model("snapkv:budget=40,window=8,heads=adaptive,floor=1");
  test_model* adaptive = test_model_create(&spec, (test_random){3});
  spec.policy = "snapkv:budget=40,window=8";
  test_model* equal = test_model_create(&spec, (test_random){3});
  for (int i = 0; i < 3; ++i) {
    test_model_step(adaptive, 50);
    test_model_step(equal, 50);
    EXPECT_OK(test_model_evict(adaptive, NULL, NULL));
    EXPECT_OK(test_model_evict(equal, NULL, NULL));
    test_expect_same_tokens(adaptive, equal, "a floor of 1");
  }
  test_model_destroy(adaptive);
  test_model_destroy(equal);
}

/* Attention decides. The layer's budget stays each time, each head has its floor,
 * and what a head lost beats nothing that another one has above its floor. */
Test(heads, window_attention_shares_a_layers_budget) {
  test_random random = test_random_start("heads attention");
  for (int round = 0; round < 12; ++round) {
    test_model_spec spec = test_small_model(
        round % 2 == 0
            ? "snapkv:budget=40,window=8,sink=2,heads=adaptive,floor=0.3"
            : "snapkv:budget=30,window=4,pool=max3,heads=adaptive,"
              "split=geometric");
    spec.n_kv_heads = 4;
    spec.layout = (test_layout)(round % TEST_N_LAYOUTS);
    test_model* m = test_model_create(&spec, random);
    test_random_u64(&random);
    const double floor = m->policy.floor;
    for (int i = 0; i < 3; ++i) {
      test_model_step(m, i == 0 ? 70 : 14);
      double scores[kLayers][4][kRow];
      uint8_t forced[4][kRow];
      int32_t before[kLayers][4][kRow];
      uint32_t n[kLayers][4], budgets[kLayers];
      EXPECT_OK(kvevict_policy_layer_budgets(
          m->policy_handle, test_model_context(m), budgets, kLayers));
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (uint32_t h = 0; h < 4; ++h) {
          n[l][h] = test_model_stored_of(m, l, h);
          test_model_oracle_scores_of(m, l, h, scores[l][h]);
          test_model_forced(m, l, h, NULL, forced[h]);
          test_model_positions(m, l, h, before[l][h]);
          for (uint32_t t = 0; t < n[l][h]; ++t) {
            if (forced[h][t]) scores[l][h][t] = INFINITY;
          }
        }
      }
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      test_model_check(m, "shared by attention");
      for (uint32_t l = 0; l < kLayers; ++l) {
        EXPECT(Total(m, l) == 4 * budgets[l], "layer %u holds %u, not %u", l,
               Total(m, l), 4 * budgets[l]);
        double worst_kept = INFINITY, best_lost = -INFINITY;
        for (uint32_t h = 0; h < 4; ++h) {
          int32_t after[kRow];
          test_model_positions(m, l, h, after);
          const uint32_t n_after = test_model_stored_of(m, l, h);
          const uint32_t n_safe = (uint32_t)(budgets[l] * floor);
          EXPECT(n_after >= n_safe, "%u under a floor of %u", n_after, n_safe);
          double worst = INFINITY;
          for (uint32_t t = 0, k = 0; t < n[l][h]; ++t) {
            if (k < n_after && after[k] == before[l][h][t]) {
              worst = fmin(worst, scores[l][h][t]);
              ++k;
            } else {
              best_lost = fmax(best_lost, scores[l][h][t]);
            }
          }
          if (n_after > n_safe) worst_kept = fmin(worst_kept, worst);
        }
        EXPECT(best_lost <= worst_kept * (1 + 1e-5),
               "layer %u lost %g and kept %g", l, best_lost, worst_kept);
      }
    }
    test_model_destroy(m);
  }
}

/* Nothing is below the threshold, so nothing is evicted, and trims go as far back
 * as without an eviction. */
Test(heads, a_threshold_that_all_reach_evicts_nothing) {
  given g;
  Start(&g, "custom:sink=0,recent=4,heads=threshold,threshold=-2", 70);
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(test_model_evict(g.m, &g.options, &report));
  cr_expect_eq(report.evicted, 0);
  cr_expect_eq(report.tokens_after, 2 * 70);
  ExpectCounts(&g, 70, 70, "above the threshold");
  /* This is in one layer only. */
  for (int t = 0; t < 50; ++t) g.scores[1][0][t] = -2.5f;
  EXPECT_OK(kvevict_sequence_trim_to(g.m->sequence, 60, NULL));
  g.m->n_seen = 60;
  EXPECT_OK(test_model_evict(g.m, &g.options, &report));
  cr_expect_eq(report.evicted, 1);
  cr_expect_eq(report.tokens_before, 2 * 60);
  cr_expect_eq(report.tokens_after, 60 + 60);
  cr_expect_eq(report.bytes_before - report.bytes_after,
               50 * test_model_row_bytes(g.m, 1));
  const uint32_t want[2][2] = {{60, 60}, {10, 60}};
  for (uint32_t i = 0; i < 4; ++i) {
    cr_expect_eq(test_model_stored_of(g.m, i / 2, i % 2), want[i / 2][i % 2]);
  }
  test_model_check(g.m, "one layer");
  test_model_destroy(g.m);
}

/* DMS: a token that leaves the sliding window stays if it reaches the threshold. */
Test(heads, a_threshold_spares_the_sliding_window) {
  given g;
  Start(&g, "custom:sink=0,recent=10,heads=threshold,threshold=0.5", 70);
  for (int t = 0; t < 70; ++t) {
    for (int l = 0; l < kLayers; ++l) {
      g.scores[l][0][t] = t % 3 == 0 ? 0.5f : 0.4999f;
      g.scores[l][1][t] = t % 4 == 0 ? INFINITY : -INFINITY;
    }
  }
  EXPECT_OK(test_model_evict(g.m, &g.options, NULL));
  ExpectCounts(&g, 20 + 10, 15 + 10, "a window of 10");
  test_model_destroy(g.m);
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

  const test_model_spec spec =
      test_small_model("custom:sink=0,heads=threshold");
  test_model* m = test_model_create(&spec, (test_random){1});
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
