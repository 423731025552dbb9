/* kvevict_plan_selection(): what a plan's policy asks kvevict_select() for. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"

static test_plan* Plan(const char* policy, uint32_t n_layers,
                       uint32_t n_kv_heads) {
  const kvevict_layer_geometry layer = test_layer(n_kv_heads, n_kv_heads, 8, 8);
  const kvevict_geometry geometry = test_geometry(n_layers, 1100, &layer);
  return test_plan_create_to_select(policy, &geometry, 1);
}

Test(plan_selection, a_plan_says_what_its_policy_wants) {
  test_plan* p = Plan(
      "custom:budget=10,sink=2,recent=3,tie=higher,scope=layer,over=max", 2, 4);
  GROWN(kvevict_select_options) o = {KVEVICT_SELECT_OPTIONS_INIT};
  GROWN(kvevict_keep_lists) k = {KVEVICT_KEEP_LISTS_INIT};
  o.value.scores_len = 99;
  k.value.slots_len = 99;
  EXPECT_OK(kvevict_plan_selection(p->plan, 1, 100, 0, &o.value, &k.value));
  cr_expect_eq(o.value.n_tokens, 100);
  cr_expect_eq(o.value.n_rows, 4);
  cr_expect_eq(o.value.reduce, KVEVICT_REDUCE_MAX);
  cr_expect_eq(o.value.n_sink, 2);
  cr_expect_eq(o.value.n_recent, 3);
  cr_expect_eq(o.value.tie, KVEVICT_TIE_HIGHER_POSITION);
  cr_expect_eq(o.value.scores_len, 0);
  cr_expect_eq(k.value.n_lists, 1);
  cr_expect_eq(k.value.count, 10);
  cr_expect_eq(k.value.slots_len, 0);
  EXPECT_INVALID(kvevict_plan_selection(NULL, 0, 100, 0, &o.value, &k.value),
                 "plan", "NULL");
  EXPECT_INVALID(kvevict_plan_selection(p->plan, 0, 100, 0, NULL, &k.value),
                 "options", "NULL");
  EXPECT_INVALID(kvevict_plan_selection(p->plan, 0, 100, 0, &o.value, NULL),
                 "keep", "NULL");
  EXPECT_INVALID(kvevict_plan_selection(p->plan, 2, 100, 0, &o.value, &k.value),
                 "layer 2", "n_layers 2");
  EXPECT_INVALID(kvevict_plan_selection(p->plan, 0, 0, 0, &o.value, &k.value),
                 "n_tokens 0");
  EXPECT_INVALID(
      kvevict_plan_selection(p->plan, 0, 1101, 0, &o.value, &k.value),
      "n_tokens 1101", "max_tokens 1100");
  k.value.struct_size = sizeof k.value;
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      o, (k.value.struct_size = sizeof k.value,
          kvevict_plan_selection(p->plan, 0, 100, 0, &o.value, &k.value)));
  o.value.struct_size = sizeof o.value;
  EXPECT_CHECKS_OUT_STRUCT_SIZE(
      k, kvevict_plan_selection(p->plan, 0, 100, 0, &o.value, &k.value));
  test_plan_destroy(p);
}

/* Heads have lists of their own, of as many slots as the layer keeps. */
Test(plan_selection, a_plan_says_what_each_layer_keeps) {
  enum { kLayers = 4, kHeads = 3 };
  test_plan* p = Plan("custom:budget=40,sink=0,split=geometric,alpha=0.5",
                      kLayers, kHeads);
  uint32_t budgets[kLayers];
  EXPECT_OK(kvevict_plan_layer_budgets(p->plan, 200, budgets, kLayers));
  cr_assert_gt(budgets[0], budgets[3]);
  for (uint32_t l = 0; l < kLayers; ++l) {
    kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
    kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
    EXPECT_OK(kvevict_plan_selection(p->plan, l, 200, 0, &o, &k));
    EXPECT(k.count == budgets[l] && k.n_lists == kHeads && o.n_rows == kHeads,
           "layer %u: %u lists of %u for %u rows", l, k.n_lists, k.count,
           o.n_rows);
  }
  test_plan_destroy(p);
}

/* As in an eviction, the ratio is one of the tokens seen, so repeated calls do not shrink
 * what is left. */
Test(plan_selection, a_ratio_is_one_of_the_tokens_seen) {
  test_plan* p = Plan("streaming-llm:budget=0.25", 1, 1);
  const struct {
    uint32_t n_tokens, n_seen, count;
  } cases[] = {{200, 0, 50},         {200, 200, 50},  {200, 500, 125},
               {200, 900, 200},      {100, 401, 100}, {900, 4000, 275},
               {900, INT32_MAX, 275}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
    kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
    EXPECT_OK(kvevict_plan_selection(p->plan, 0, cases[i].n_tokens,
                                     cases[i].n_seen, &o, &k));
    EXPECT(k.count == cases[i].count, "case %zu: %u, not %u", i, k.count,
           cases[i].count);
    EXPECT(o.n_sink == (k.count == cases[i].n_tokens ? 0 : 4), "case %zu", i);
  }
  kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_INVALID(kvevict_plan_selection(p->plan, 0, 200, 199, &o, &k),
                 "n_seen 199 is not 0 or in [n_tokens 200, 2147483647]");
  EXPECT_INVALID(kvevict_plan_selection(p->plan, 0, 200, 1u << 31, &o, &k),
                 "n_seen 2147483648");
  test_plan_destroy(p);
}

/* A plan with budgets per head has no single count to give. */
Test(plan_selection, a_plan_of_ragged_heads_has_no_selection) {
  test_plan* p = Plan("custom:sink=0,budget=10", 1, 2);
  const uint32_t budgets[2] = {20, 30};
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets = budgets;
  options.head_budgets_len = 2;
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(p->context, &p->geometry, p->policy_handle,
                                &options, &plan));
  kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_FAILS(kvevict_plan_selection(plan, 0, 100, 0, &o, &k),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0", "budgets of their own");
  /* The layer's budget is that of the head that keeps most. */
  uint32_t told[2] = {0, 0};
  EXPECT_OK(kvevict_plan_layer_budgets(plan, 100, &told[0], 1));
  EXPECT_OK(kvevict_plan_layer_budgets(plan, 25, &told[1], 1));
  EXPECT(told[0] == 30 && told[1] == 25, "%u, %u", told[0], told[1]);
  kvevict_plan_destroy(plan);
  test_plan_destroy(p);
}

Test(plan_selection, a_plan_whose_scores_count_has_no_selection) {
  test_plan* p = Plan("custom:sink=0,budget=10,heads=adaptive", 1, 2);
  kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_FAILS(kvevict_plan_selection(p->plan, 0, 100, 0, &o, &k),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0", "scores decide");
  test_plan_destroy(p);
}
