/* kvevict_select() of one layer, by hand. keep_lists_test.c has random calls and the
 * oracle. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"

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
