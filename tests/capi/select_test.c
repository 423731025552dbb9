#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/policy.h"
#include "tests/oracle/select.h"

enum { kMaxTokens = 1100 };

static test_plan* Plan(const char* policy, uint32_t n_layers,
                       uint32_t n_kv_heads, uint32_t n_threads) {
  const kvevict_layer_geometry layer = test_layer(n_kv_heads, n_kv_heads, 8, 8);
  const kvevict_geometry geometry = test_geometry(n_layers, kMaxTokens, &layer);
  return test_plan_create_to_select(policy, &geometry, n_threads);
}

static kvevict_status Select(test_plan* p, uint32_t layer, const float* scores,
                             size_t scores_len, uint32_t n_tokens,
                             int32_t* keep, size_t keep_capacity,
                             uint32_t* n_keep) {
  return test_select(p, layer, scores, scores_len, n_tokens, NULL, 0, keep,
                     keep_capacity, n_keep);
}

/* One layer of one KV head: which of n scores survive. */
static void ExpectKept(const char* policy, const float* scores, uint32_t n,
                       const int32_t* expected, uint32_t n_expected) {
  test_plan* p = Plan(policy, 1, 1, 1);
  int32_t keep[64];
  uint32_t n_keep = 99;
  EXPECT_OK(Select(p, 0, scores, n, n, keep, 64, &n_keep));
  EXPECT(n_keep == n_expected, "%s: %u kept", policy, n_keep);
  for (uint32_t i = 0; i < n_keep; ++i) {
    EXPECT(keep[i] == expected[i], "%s: keep[%u] is %d, not %d", policy, i,
           keep[i], expected[i]);
  }
  test_plan_destroy(p);
}

Test(select, keeps_the_highest_scores_in_ascending_order) {
  const float scores[] = {1, 9, 3, 7, 5, 8};
  ExpectKept("custom:budget=3,sink=0", scores, 6, (int32_t[]){1, 3, 5}, 3);
}

Test(select, keeps_sinks_and_recents_when_the_budget_is_tight) {
  const float scores[] = {0, 0, 0, 9, 9, 9, 0, 0};
  ExpectKept("custom:budget=4,sink=2,recent=2", scores, 8,
             (int32_t[]){0, 1, 6, 7}, 4);
  ExpectKept("custom:budget=5,sink=2,recent=2", scores, 8,
             (int32_t[]){0, 1, 3, 6, 7}, 5);
}

Test(select, keeps_the_window_unless_told_not_to) {
  const float scores[] = {5, 4, 3, 2, 1, 0, 0, 0};
  ExpectKept("snapkv:budget=4,sink=0,window=3", scores, 8,
             (int32_t[]){0, 5, 6, 7}, 4);
  ExpectKept("snapkv:budget=4,sink=0,window=3,keep_window=no", scores, 8,
             (int32_t[]){0, 1, 2, 3}, 4);
}

Test(select, ties_go_to_the_lower_or_the_higher_position) {
  const float scores[] = {1, 2, 2, 2, 2, 1};
  ExpectKept("custom:budget=2,sink=0", scores, 6, (int32_t[]){1, 2}, 2);
  ExpectKept("custom:budget=2,sink=0,tie=higher", scores, 6, (int32_t[]){3, 4},
             2);
  ExpectKept("custom:budget=5,sink=0", scores, 6, (int32_t[]){0, 1, 2, 3, 4},
             5);
  ExpectKept("custom:budget=5,sink=0,tie=higher", scores, 6,
             (int32_t[]){1, 2, 3, 4, 5}, 5);
}

Test(select, minus_zero_ties_with_zero) {
  const float scores[] = {0.0f, -0.0f, 0.0f, -0.0f};
  ExpectKept("custom:budget=2,sink=0", scores, 4, (int32_t[]){0, 1}, 2);
  ExpectKept("custom:budget=2,sink=0,tie=higher", scores, 4, (int32_t[]){2, 3},
             2);
}

Test(select, infinity_is_first_and_nan_is_last) {
  const float scores[] = {NAN, -INFINITY, 0, INFINITY, NAN, -1e38f};
  ExpectKept("custom:budget=2,sink=0", scores, 6, (int32_t[]){2, 3}, 2);
  ExpectKept("custom:budget=4,sink=0", scores, 6, (int32_t[]){1, 2, 3, 5}, 4);
  ExpectKept("custom:budget=5,sink=0", scores, 6, (int32_t[]){0, 1, 2, 3, 5},
             5);
  ExpectKept("custom:budget=5,sink=0,tie=higher", scores, 6,
             (int32_t[]){1, 2, 3, 4, 5}, 5);
}

Test(select, nan_of_either_sign_is_last) {
  const float scores[] = {-NAN, -INFINITY, NAN, -5};
  ExpectKept("custom:budget=2,sink=0", scores, 4, (int32_t[]){1, 3}, 2);
}

Test(select, tiny_differences_decide) {
  const float scores[] = {1.0f, 1.00000012f, 0x1p-149f, 0.0f, -0x1p-149f};
  ExpectKept("custom:budget=1.5,sink=0", scores, 5, (int32_t[]){1}, 1);
  ExpectKept("custom:budget=3,sink=0", scores, 5, (int32_t[]){0, 1, 2}, 3);
  ExpectKept("custom:budget=4,sink=0", scores, 5, (int32_t[]){0, 1, 2, 3}, 4);
}

Test(select, infinity_does_not_push_out_what_must_stay) {
  const float scores[] = {0, INFINITY, INFINITY, INFINITY, 0};
  ExpectKept("custom:budget=3,sink=1,recent=1", scores, 5, (int32_t[]){0, 1, 4},
             3);
}

Test(select, budget_that_covers_the_tokens_keeps_all) {
  for (uint32_t n = 1; n <= 40; ++n) {
    test_plan* p = Plan("snapkv:budget=40", 2, 3, 1);
    float scores[3 * 40] = {0};
    int32_t keep[3 * 40];
    uint32_t n_keep = 0;
    EXPECT_OK(Select(p, 1, scores, 3 * n, n, keep, 3 * n, &n_keep));
    EXPECT(n_keep == n, "%u of %u kept", n_keep, n);
    for (uint32_t i = 0; i < 3 * n; ++i) {
      EXPECT(keep[i] == (int32_t)(i % n), "keep[%u] is %d", i, keep[i]);
    }
    test_plan_destroy(p);
  }
}

/* All heads keep the same tokens, so there is one list. */
Test(select, streaming_llm_needs_no_scores) {
  test_plan* p = Plan("streaming-llm:budget=7", 2, 3, 1);
  int32_t keep[64];
  GUARD(keep);
  uint32_t n_keep = 0;
  EXPECT_OK(Select(p, 0, NULL, 0, 100, keep, 7, &n_keep));
  cr_assert_eq(n_keep, 7);
  const int32_t expected[] = {0, 1, 2, 3, 97, 98, 99};
  cr_assert_arr_eq(keep, expected, sizeof expected);
  cr_assert(test_is_filled(keep + 7, sizeof keep - sizeof expected),
            "wrote beyond the list");
  test_plan_destroy(p);
}

Test(select, streaming_llm_honours_protected_slots_and_splits) {
  test_plan* p =
      Plan("streaming-llm:budget=7,split=geometric,alpha=0.5", 2, 2, 1);
  const int32_t slots[] = {2, 40, 41}; /* the first is a sink */
  const int32_t expected[2][8] = {{0, 1, 2, 3, 40, 41, 98, 99},
                                  {0, 1, 2, 3, 40, 99}};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    uint32_t budgets[2], n_keep = 0;
    EXPECT_OK(kvevict_plan_layer_budgets(p->plan, 100, budgets, 2));
    int32_t keep[32];
    EXPECT_OK(test_select(p, layer, NULL, 0, 100, slots, layer == 0 ? 3 : 2,
                          keep, 32, &n_keep));
    cr_assert_eq(n_keep, budgets[layer]);
    cr_assert_eq(n_keep, layer == 0 ? 8 : 6, "layer %u keeps %u", layer,
                 n_keep);
    for (uint32_t i = 0; i < n_keep; ++i) {
      EXPECT(keep[i] == expected[layer][i], "layer %u: keep[%u] is %d", layer,
             i, keep[i]);
    }
  }
  test_plan_destroy(p);
}

Test(select, each_layer_has_its_pyramid_budget) {
  test_plan* p = Plan("pyramidkv:budget=50,alpha=0.5", 3, 1, 1);
  float scores[200];
  for (int i = 0; i < 200; ++i) scores[i] = (float)(i * 37 % 200);
  uint32_t budgets[3];
  EXPECT_OK(kvevict_plan_layer_budgets(p->plan, 200, budgets, 3));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    int32_t keep[200];
    uint32_t n_keep = 0;
    EXPECT_OK(
        Select(p, layer, scores, 200, 200, keep, budgets[layer], &n_keep));
    EXPECT(n_keep == budgets[layer], "layer %u keeps %u", layer, n_keep);
  }
  test_plan_destroy(p);
}

Test(select, protected_slots_stay) {
  test_plan* p = Plan("custom:budget=4,sink=1,recent=1", 1, 2, 1);
  const float scores[20] = {0, 9, 9, 9, 0, 0, 0, 0, 0, 0,
                            0, 0, 0, 0, 0, 0, 9, 9, 9, 0};
  const int32_t slots[] = {0, 4, 9}; /* the ends stay anyway, for free */
  int32_t keep[8];
  uint32_t n_keep = 0;
  EXPECT_OK(test_select(p, 0, scores, 20, 10, slots, 3, keep, 8, &n_keep));
  const int32_t expected[] = {0, 1, 4, 9, 0, 4, 6, 9};
  cr_assert_eq(n_keep, 4);
  for (int i = 0; i < 8; ++i) {
    cr_expect_eq(keep[i], expected[i], "keep[%d] is %d", i, keep[i]);
  }
  test_plan_destroy(p);
}

/* ---- Properties ---- */

typedef struct select_case {
  char policy[200];
  uint32_t n_layers, n_heads, n_tokens, layer;
  float* scores;
  size_t scores_len;
  int32_t protect[8];
  uint32_t n_protect;
} select_case;

/* Scores on a grid of eighths tie often and add up exactly. */
static float RandomScore(test_random* random) {
  switch (test_random_below(random, 40)) {
    case 0:
      return NAN;
    case 1:
      return INFINITY;
    case 2:
      return -INFINITY;
    default:
      return (float)((int)test_random_below(random, 200) - 100) / 8.0f;
  }
}

static uint32_t RandomTokens(test_random* random) {
  static const uint32_t kEdges[] = {1,   2,   3,   4,   7,    8,    15,  16,
                                    17,  31,  33,  63,  64,   65,   127, 128,
                                    129, 255, 256, 257, 1023, 1024, 1025};
  return test_random_coin(random)
             ? kEdges[test_random_below(random, sizeof kEdges / 4)]
             : test_random_between(random, 1, kMaxTokens);
}

static select_case RandomCase(test_random* random) {
  static const char* const kScopes[] = {"head", "layer", "model"};
  static const char* const kReduces[] = {"mean", "max", "sum"};
  select_case c;
  c.n_layers = test_random_between(random, 1, 3);
  c.n_heads = test_random_between(random, 1, 4);
  c.n_tokens = RandomTokens(random);
  const uint32_t scope = test_random_below(random, 3);
  c.layer = scope == 2 ? 0 : test_random_below(random, c.n_layers);
  c.n_protect = test_random_below(random, c.n_tokens < 8 ? c.n_tokens : 8);
  test_random_ascending(random, c.protect, c.n_protect, c.n_tokens);
  const uint32_t sink = test_random_below(random, 6);
  const uint32_t recent = test_random_below(random, 6);
  snprintf(
      c.policy, sizeof c.policy,
      "custom:budget=%u,sink=%u,recent=%u,scope=%s,over=%s,tie=%s%s",
      2 + sink + recent + c.n_protect + test_random_below(random, c.n_tokens),
      sink, recent, kScopes[scope], kReduces[test_random_below(random, 3)],
      test_random_coin(random) ? "lower" : "higher",
      scope != 2 && test_random_coin(random) ? ",split=geometric,alpha=0.9"
                                             : "");
  c.scores_len = (size_t)c.n_heads * c.n_tokens * (scope == 2 ? c.n_layers : 1);
  c.scores = malloc(c.scores_len * sizeof(float));
  for (size_t i = 0; i < c.scores_len; ++i) c.scores[i] = RandomScore(random);
  return c;
}

static kvevict_status RunCase(const select_case* c, test_plan* p, int32_t* keep,
                              uint32_t* n_keep) {
  return test_select(p, c->layer, c->scores, c->scores_len, c->n_tokens,
                     c->protect, c->n_protect, keep, 4 * kMaxTokens, n_keep);
}

/* Fills expected[n_lists, n_keep]; false if what must stay does not fit. */
static bool OracleCase(const select_case* c, const test_plan* p,
                       int32_t* expected, uint32_t* n_lists, uint32_t* n_keep) {
  const oracle_policy* policy = &p->policy;
  uint32_t budgets[8];
  kvevict_resolved_policy r;
  if (!oracle_layer_budgets(policy, c->n_tokens, budgets, c->n_layers)) {
    return false;
  }
  *n_keep = budgets[c->layer];
  *n_lists = policy->scope == KVEVICT_SCOPE_KV_HEAD ? c->n_heads : 1;
  uint8_t forced[kMaxTokens] = {0};
  if (*n_keep < c->n_tokens) {
    if (!oracle_resolve(policy, c->n_tokens, &r)) return false;
    uint32_t n_forced = 0;
    for (uint32_t i = 0; i < c->n_tokens; ++i) {
      forced[i] = i < r.n_sink || i + r.n_recent >= c->n_tokens;
    }
    for (uint32_t i = 0; i < c->n_protect; ++i) forced[c->protect[i]] = 1;
    for (uint32_t i = 0; i < c->n_tokens; ++i) n_forced += forced[i];
    if (n_forced > *n_keep) return false;
  }
  const uint32_t rows = (uint32_t)(c->scores_len / c->n_tokens) / *n_lists;
  for (uint32_t list = 0; list < *n_lists; ++list) {
    float combined[kMaxTokens];
    oracle_combine(c->scores + (size_t)list * rows * c->n_tokens, rows,
                   c->n_tokens, policy->over, combined);
    oracle_select(combined, c->n_tokens, *n_keep, forced, policy->tie,
                  expected + (size_t)list * *n_keep);
  }
  return true;
}

Test(select, agrees_with_the_oracle_for_any_thread_count) {
  test_random random = test_random_start("select oracle");
  static int32_t keep[4 * kMaxTokens], expected[4 * kMaxTokens];
  uint32_t n_selecting = 0;
  for (int i = 0; i < 1500; ++i) {
    const select_case c = RandomCase(&random);
    float* before = malloc(c.scores_len * sizeof(float));
    memcpy(before, c.scores, c.scores_len * sizeof(float));
    test_plan* p = Plan(c.policy, c.n_layers, c.n_heads, 1 + (uint32_t)i % 4);
    uint32_t n_keep = 12345, want = 0, n_lists = 0;
    GUARD(keep);
    if (!OracleCase(&c, p, expected, &n_lists, &want)) {
      EXPECT_INVALID(RunCase(&c, p, keep, &n_keep), "budget");
      EXPECT_UNTOUCHED(keep);
      EXPECT(n_keep == 12345, "out_n_keep was written");
    } else {
      EXPECT_OK(RunCase(&c, p, keep, &n_keep));
      EXPECT(n_keep == want, "%s of %u: %u kept, not %u", c.policy, c.n_tokens,
             n_keep, want);
      const size_t n = (size_t)n_lists * n_keep;
      for (size_t k = 0; k < n; ++k) {
        EXPECT(keep[k] == expected[k],
               "%s, %u heads, %u tokens: keep[%zu] %d, "
               "not %d",
               c.policy, c.n_heads, c.n_tokens, k, keep[k], expected[k]);
      }
      EXPECT(test_is_filled(keep + n, sizeof keep - n * sizeof(int32_t)),
             "wrote beyond the lists");
      n_selecting += n_keep < c.n_tokens;
    }
    EXPECT(memcmp(before, c.scores, c.scores_len * sizeof(float)) == 0,
           "the scores were written");
    test_plan_destroy(p);
    free(before);
    free(c.scores);
  }
  cr_assert(n_selecting > 500, "only %u cases select", n_selecting);
}

Test(select, larger_budget_keeps_a_superset) {
  test_random random = test_random_start("select superset");
  float scores[500];
  for (int i = 0; i < 500; ++i) scores[i] = RandomScore(&random);
  uint8_t kept[500] = {0};
  for (uint32_t budget = 10; budget <= 500; budget += 7) {
    char policy[64];
    snprintf(policy, sizeof policy, "custom:budget=%u,sink=2,recent=3", budget);
    test_plan* p = Plan(policy, 1, 1, 1);
    int32_t keep[500];
    uint32_t n_keep = 0;
    EXPECT_OK(Select(p, 0, scores, 500, 500, keep, 500, &n_keep));
    uint8_t now[500] = {0};
    for (uint32_t i = 0; i < n_keep; ++i) now[keep[i]] = 1;
    for (int i = 0; i < 500; ++i) {
      EXPECT(now[i] >= kept[i], "budget %u lost slot %d", budget, i);
    }
    memcpy(kept, now, sizeof kept);
    test_plan_destroy(p);
  }
}

Test(select, permuted_heads_give_permuted_lists) {
  test_random random = test_random_start("select heads");
  enum { kHeads = 4, kTokens = 300, kKeep = 50 };
  static float scores[kHeads][kTokens], permuted[kHeads][kTokens];
  int32_t order[kHeads];
  test_random_permutation(&random, order, kHeads);
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kTokens; ++t) scores[h][t] = RandomScore(&random);
  }
  for (int h = 0; h < kHeads; ++h) {
    memcpy(permuted[h], scores[order[h]], sizeof permuted[h]);
  }
  test_plan* p = Plan("custom:sink=0,budget=50", 1, kHeads, 1);
  int32_t a[kHeads][kKeep], b[kHeads][kKeep];
  uint32_t n = 0;
  EXPECT_OK(Select(p, 0, scores[0], kHeads * kTokens, kTokens, a[0],
                   kHeads * kKeep, &n));
  EXPECT_OK(Select(p, 0, permuted[0], kHeads * kTokens, kTokens, b[0],
                   kHeads * kKeep, &n));
  for (int h = 0; h < kHeads; ++h) {
    cr_assert(memcmp(b[h], a[order[h]], sizeof b[h]) == 0, "head %d", h);
  }
  test_plan_destroy(p);
}

/* ---- Errors ---- */

/* `change` to a valid call makes it fail; nothing is written. */
#define EXPECT_BREAKS(change, ...)                                           \
  do {                                                                       \
    test_plan* p = Plan("custom:budget=10,sink=2,recent=2", 2, 2, 1);        \
    static const float kScores[2 * kMaxTokens];                              \
    kvevict_select_options options, *o = &options;                           \
    kvevict_keep_lists lists, *keep = &lists;                                \
    options = (kvevict_select_options)KVEVICT_SELECT_OPTIONS_INIT;           \
    lists = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;                     \
    EXPECT_OK(kvevict_plan_selection(p->plan, 1, 100, 0, &options, &lists)); \
    int32_t slots[2] = {5, 9}, keep_array[20];                               \
    uint32_t counts[2] = {10, 10};                                           \
    options.scores = kScores;                                                \
    options.scores_len = 200;                                                \
    options.protected_slots = slots;                                         \
    options.protected_slots_len = 2;                                         \
    lists.slots = keep_array;                                                \
    lists.slots_len = 20;                                                    \
    size_t bytes = p->workspace_bytes;                                       \
    const kvevict_context* context = p->context;                             \
    char* workspace = p->workspace;                                          \
    GUARD(keep_array);                                                       \
    change;                                                                  \
    EXPECT_INVALID(kvevict_select(context, o, keep, workspace, bytes, NULL), \
                   __VA_ARGS__);                                             \
    EXPECT_UNTOUCHED(keep_array);                                            \
    (void)slots, (void)counts;                                               \
    test_plan_destroy(p);                                                    \
  } while (0)

Test(select, null_pointers_are_errors) {
  EXPECT_BREAKS(context = NULL, "context", "NULL");
  EXPECT_BREAKS(o = NULL, "options", "NULL");
  EXPECT_BREAKS(keep = NULL, "keep", "NULL");
  EXPECT_BREAKS(options.scores = NULL, "scores", "NULL");
  EXPECT_BREAKS(options.protected_slots = NULL, "protected_slots", "NULL");
  EXPECT_BREAKS(lists.slots = NULL, "keep.slots", "NULL", "10");
  EXPECT_BREAKS((bytes = kMaxTokens * 64, workspace = NULL), "workspace",
                "NULL");
}

Test(select, wrong_sizes_are_errors) {
  EXPECT_BREAKS(options.struct_size = 4, "struct_size 4");
  EXPECT_BREAKS(lists.struct_size = 4, "struct_size 4");
  EXPECT_BREAKS(options.select_block = 65537, "select_block 65537 > 65536");
  EXPECT_BREAKS(lists.reserved = 1, "keep.reserved 1");
  EXPECT_BREAKS(options.scores_len = 199, "scores_len 199", "n_rows 2", "100");
  EXPECT_BREAKS(options.scores_len = 201, "scores_len 201", "n_rows 2", "100");
  EXPECT_BREAKS(options.n_rows = 3, "n_rows 3", "n_lists 2");
  EXPECT_BREAKS(options.n_tokens = 0, "n_tokens 0");
  EXPECT_BREAKS(options.n_tokens = 2147483648u, "n_tokens 2147483648");
  EXPECT_BREAKS(options.reduce = 3, "reduce 3");
  EXPECT_BREAKS(options.tie = -1, "tie -1");
  EXPECT_BREAKS(lists.n_lists = 0, "keep.n_lists 0");
  EXPECT_BREAKS(lists.slots_len = 19, "keep.slots_len 19", "20", "2 lists");
  EXPECT_BREAKS(lists.list_stride = 9, "keep.list_stride 9", "count 10");
  EXPECT_BREAKS(lists.list_stride = 11, "keep.slots_len 20", "21");
  EXPECT_BREAKS(lists.list_stride = UINT64_MAX, "keep.slots_len 20");
  EXPECT_BREAKS((lists.count = 101, lists.slots_len = 202), "count 101",
                "100 tokens");
  EXPECT_BREAKS(bytes = 0, "workspace_bytes 0");
  EXPECT_BREAKS(workspace += 4, "workspace", "64");
}

Test(select, counts_out_of_range_are_errors) {
  EXPECT_BREAKS((counts[1] = 11, lists.counts = counts), "keep.counts[1] 11",
                "10");
  EXPECT_BREAKS((counts[0] = 5, lists.counts = counts), "keep.count 5",
                "< n_sink 2 + n_recent 2 + 2 protected", "list 0");
  EXPECT_BREAKS((counts[1] = 101, options.token_counts = counts),
                "token_counts[1] 101", "100");
  EXPECT_BREAKS((counts[1] = 9, options.token_counts = counts), "count 10",
                "9 tokens", "list 1");
  EXPECT_BREAKS((options.token_counts = counts, options.n_rows = 4,
                 options.scores_len = 400),
                "token_counts", "n_rows 4", "2 lists");
}

Test(select, bad_protected_slots_are_errors) {
  EXPECT_BREAKS((slots[0] = 9, slots[1] = 5), "protected_slots[1] 5");
  EXPECT_BREAKS(slots[0] = 9, "protected_slots[1] 9");
  EXPECT_BREAKS(slots[0] = -1, "protected_slots[0] -1");
  EXPECT_BREAKS(slots[1] = 100, "protected_slots[1] 100", "n_tokens 100");
  EXPECT_BREAKS((slots[0] = INT32_MIN, slots[1] = INT32_MAX),
                "protected_slots[0]");
}

Test(select, a_workspace_for_more_serves_fewer) {
  test_plan* p = Plan("custom", 1, 1, 1);
  GROWN(kvevict_workspace) grown = {KVEVICT_WORKSPACE_INIT};
  kvevict_workspace* w = &grown.value;
  size_t last = 0;
  for (uint32_t n = 0; n <= 3000; n += 100) {
    EXPECT_OK(kvevict_select_workspace(p->context, n, 3, w));
    EXPECT(w->least_bytes >= last, "%zu bytes for %u tokens, %zu for fewer",
           w->least_bytes, n, last);
    EXPECT(w->best_bytes >= w->least_bytes && w->alignment == 64,
           "%zu to %zu bytes", w->least_bytes, w->best_bytes);
    last = w->least_bytes;
  }
  const kvevict_workspace before = *w;
  EXPECT_INVALID(kvevict_select_workspace(NULL, 1, 1, w), "context", "NULL");
  EXPECT_INVALID(kvevict_select_workspace(p->context, 1, 1, NULL), "out",
                 "NULL");
  EXPECT_INVALID(kvevict_select_workspace(p->context, 2147483648u, 1, w),
                 "n_tokens 2147483648");
  cr_assert(memcmp(w, &before, sizeof before) == 0);
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      grown, kvevict_select_workspace(p->context, 100, 3, w));
  test_plan_destroy(p);
}

Test(select, more_to_keep_than_the_budget_is_an_error) {
  test_plan* p = Plan("custom:budget=10,sink=2,recent=2", 1, 1, 1);
  static const float scores[100];
  int32_t slots[7] = {10, 11, 12, 13, 14, 15, 16}, keep[10];
  uint32_t n_keep;
  EXPECT_OK(test_select(p, 0, scores, 100, 100, slots, 6, keep, 10, &n_keep));
  GUARD(keep);
  EXPECT_INVALID(
      test_select(p, 0, scores, 100, 100, slots, 7, keep, 10, &n_keep),
      "keep.count 10", "< n_sink 2", "n_recent 2", "7 protected");
  EXPECT_UNTOUCHED(keep);
  test_plan_destroy(p);
}

Test(select, a_ratio_that_has_no_room_keeps_all) {
  test_plan* p = Plan("snapkv:budget=0.5", 1, 1, 1);
  static const float scores[60];
  int32_t keep[60];
  uint32_t n_keep;
  EXPECT_OK(Select(p, 0, scores, 60, 60, keep, 60, &n_keep));
  EXPECT(n_keep == 60, "%u", n_keep);
  for (int32_t i = 0; i < 60; ++i) EXPECT(keep[i] == i, "%d: %d", i, keep[i]);
  test_plan_destroy(p);
}

/* 4 of 5 slots are sinks and recents. One more fits, wherever it lies. */
Test(select, one_protected_slot_too_many_is_found_at_either_end) {
  const int32_t kPairs[][2] = {{2, 50}, {50, 97}, {2, 97}, {2, 3}, {96, 97}};
  test_plan* p = Plan("custom:budget=5,sink=2,recent=2", 1, 1, 1);
  static const float scores[100];
  for (int i = 0; i < 5; ++i) {
    int32_t keep[5];
    uint32_t n_keep = 0;
    EXPECT_INVALID(
        test_select(p, 0, scores, 100, 100, kPairs[i], 2, keep, 5, &n_keep),
        "2 protected");
    EXPECT_OK(
        test_select(p, 0, scores, 100, 100, kPairs[i], 1, keep, 5, &n_keep));
    EXPECT(keep[2] == kPairs[i][0], "keep[2] is %d", keep[2]);
  }
  test_plan_destroy(p);
}

Test(select, scores_nobody_asked_for_are_an_error) {
  test_plan* p = Plan("custom:sink=0,budget=10", 1, 1, 1);
  static const float scores[100];
  int32_t keep[10];
  uint32_t n_keep;
  EXPECT_INVALID(Select(p, 0, scores, 101, 100, keep, 10, &n_keep),
                 "scores_len 101");
  test_plan_destroy(p);
}

Test(select, scope_model_selects_for_layer_0_only) {
  test_plan* p = Plan("custom:sink=0,budget=10,scope=model", 2, 1, 1);
  static const float scores[200];
  int32_t keep[10];
  uint32_t n_keep;
  EXPECT_OK(Select(p, 0, scores, 200, 100, keep, 10, &n_keep));
  EXPECT_INVALID(Select(p, 1, scores, 200, 100, keep, 10, &n_keep), "layer 1");
  test_plan_destroy(p);
}
