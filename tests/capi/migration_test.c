/* Tries what docs/migration.md says. The engine's own rules are written out here,
 * so that kvevict's keep lists can be held against them. preset_sets_test.c has the engine's scores. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"

/* The page's policy text for three numbers of the engine's configuration. */
static const char* TextOf(int32_t budget, int32_t window, int32_t recency) {
  static char text[128];
  if (window < 1) window = 1;
  if (recency < 0) recency = 0;
  if (budget <= 0) return "none";
  if (recency >= budget) {
    snprintf(text, sizeof text, "streaming-llm:sink=0,recent=%d", budget);
  } else {
    snprintf(text, sizeof text,
             "snapkv-sharpinference:budget=%.9g,window=%d,recent=%d",
             budget == 1 ? 1.5 : (double)budget, window, recency);
  }
  return text;
}

/* The engine keeps the last tokens and the best before them, the lower of two
 * equal positions. Returns the list's length. */
static uint32_t EngineKeeps(const float* scores, uint32_t n, uint32_t budget,
                            uint32_t recency, int32_t* keep) {
  uint8_t* kept = calloc(n, 1);
  const uint32_t k = budget < n ? budget : n;
  const uint32_t last = recency < k ? recency : k;
  memset(kept + n - last, 1, last);
  for (uint32_t i = last; i < k; ++i) {
    int64_t best = -1;
    for (uint32_t p = 0; p < n - last; ++p) {
      if (!kept[p] && (best < 0 || scores[p] > scores[best])) best = p;
    }
    kept[best] = 1;
  }
  uint32_t n_keep = 0;
  for (uint32_t p = 0; p < n; ++p) {
    if (kept[p]) keep[n_keep++] = (int32_t)p;
  }
  free(kept);
  return n_keep;
}

/* kvevict's list for the same scores. */
static uint32_t Keeps(const char* text, const float* scores, uint32_t n,
                      int32_t* keep) {
  const kvevict_layer_geometry layer = test_layer(1, 1, 1, 1);
  const kvevict_geometry g = test_geometry(1, n, &layer);
  test_plan* p = test_plan_create_to_select(text, &g, 1);
  uint32_t n_keep = 0;
  const bool ranks = p->policy.kind == ORACLE_SNAPKV;
  EXPECT_OK(test_select(p, 0, ranks ? scores : NULL, ranks ? n : 0, n, NULL, 0,
                        keep, n, &n_keep));
  test_plan_destroy(p);
  return n_keep;
}

/* Budgets lie around 1, recencies around the budget, and scores tie. */
Test(migration, keep_lists_are_the_engines_for_the_same_scores) {
  enum { N = 200 };
  test_random random = {2024};
  int32_t expected[N], keep[N];
  float scores[N];
  static const int32_t kBudgets[] = {1, 2, 3, 64, 65, 199, 200, 201, 4096};
  for (size_t b = 0; b < sizeof kBudgets / sizeof kBudgets[0]; ++b) {
    const int32_t budget = kBudgets[b];
    const int32_t recencies[] = {-1, 0, 1, budget - 1, budget, budget + 1, 64};
    for (int r = 0; r < 7; ++r) {
      for (uint32_t i = 0; i < N; ++i) {
        scores[i] = floorf(8.0f * fabsf(test_random_normal(&random)));
      }
      const int32_t recency = recencies[r];
      const uint32_t n =
          EngineKeeps(scores, N, (uint32_t)budget,
                      recency < 0 ? 0 : (uint32_t)recency, expected);
      const char* text = TextOf(budget, 64, recency);
      const uint32_t n_keep = Keeps(text, scores, N, keep);
      EXPECT(n_keep == n && memcmp(keep, expected, n * sizeof *keep) == 0,
             "budget %d, recency %d: %s keeps %u tokens or others", budget,
             recency, text, n_keep);
    }
  }
}

Test(migration, numbers_that_would_say_something_else) {
  EXPECT_NO_POLICY("snapkv-sharpinference:budget=64,recent=64",
                   "sink 0 + recent 64 >= budget 64");
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  const kvevict_policy* policy =
      test_policy("snapkv-sharpinference:budget=1,recent=0");
  EXPECT_OK(kvevict_policy_resolve(policy, 1000, &resolved));
  cr_expect_eq(resolved.budget, 1000, "a ratio: everything");
  policy = test_policy(TextOf(1, 64, 0));
  EXPECT_OK(kvevict_policy_resolve(policy, 1000, &resolved));
  cr_expect_eq(resolved.budget, 1);
  cr_expect_eq(oracle_policy_from(TextOf(0, 64, 64)).kind, ORACLE_NONE);
  cr_expect_eq(oracle_policy_from(TextOf(-5, 64, 64)).kind, ORACLE_NONE);
  cr_expect_eq(oracle_policy_from(TextOf(512, 0, 64)).window, 1);
}

/* NaN is the worst score. The lower position of several NaNs stays. */
Test(migration, nan_scores_come_last_the_lower_position_first) {
  const float scores[] = {NAN, 1.0f, NAN, -INFINITY, NAN, 0.0f};
  int32_t keep[6];
  cr_assert_eq(Keeps(TextOf(4, 6, 0), scores, 6, keep), 4);
  const int32_t expected[] = {0, 1, 3, 5};
  cr_expect_arr_eq(keep, expected, sizeof expected);
}

/* ---- Automatic budget ---- */

static uint32_t EngineAutoBudget(uint32_t max_tokens, uint64_t bytes) {
  if (bytes > 0 && bytes < (uint64_t)256 << 20) return 0;
  const uint32_t c = max_tokens / 4;
  if (c < 1024) return max_tokens < 1024 ? max_tokens : 1024;
  return c > 4096 ? 4096 : c;
}

Test(migration, automatic_budgets_are_the_engines) {
  const uint32_t kTokens[] = {1,    1023,  1024,  1025,   4095,      4096,
                              4100, 16383, 16384, 100000, 2147483647};
  const uint64_t kBytes[] = {0, 1, (256 << 20) - 1, 256 << 20, UINT64_MAX};
  for (size_t t = 0; t < sizeof kTokens / sizeof kTokens[0]; ++t) {
    for (size_t b = 0; b < sizeof kBytes / sizeof kBytes[0]; ++b) {
      uint32_t budget = 12345;
      /* The engine writes 0 for unknown. */
      const uint64_t bytes = kBytes[b] == 0 ? UINT64_MAX : kBytes[b];
      EXPECT_OK(kvevict_auto_budget(kTokens[t], bytes, &budget));
      EXPECT(budget == EngineAutoBudget(kTokens[t], kBytes[b]),
             "%u tokens, %llu bytes: %u", kTokens[t],
             (unsigned long long)kBytes[b], budget);
    }
  }
  uint32_t budget = 12345;
  EXPECT_OK(kvevict_auto_budget(100000, 0, &budget));
  cr_expect_eq(budget, 0, "0 bytes are a small cache here");
}
