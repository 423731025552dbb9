/* Evictions by chunks: budgets without room, what cannot be combined with chunks, what
 * doors accept, and how little workspace they need. Lives have what chunks keep. */
#include <criterion/criterion.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kDim = 16 };

Test(chunks, share_what_is_less_than_they_must_keep_is_an_error) {
  const kvevict_policy* few = test_policy("knorm:sink=0,budget=10,chunk=100");
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  EXPECT_OK(kvevict_policy_resolve(few, 1000, &r));
  EXPECT_INVALID(kvevict_policy_resolve(few, 1001, &r), "budget 10 < 11",
                 "11 chunks of 100");
  const kvevict_policy* sinks = test_policy("knorm:budget=43,chunk=100,sink=4");
  EXPECT_OK(kvevict_policy_resolve(sinks, 1003, &r));
  EXPECT_INVALID(kvevict_policy_resolve(sinks, 1004, &r), "budget 43 < 44",
                 "keeps 1 or sink 4");
  test_model* m = test_model_of("knorm:sink=0,budget=12,chunk=20", 1);
  test_model_append(m, 100);
  const int32_t protect[] = {41, 42, 43, 44, 45, 46, 47, 48, 49};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 9;
  EXPECT_INVALID(test_model_evict(m, &options, NULL),
                 "layer 0: budget 12 < 13 tokens", "5 chunks of 20",
                 "9 protected");
  test_model_check(m, "refused");
  options.protected_positions_len = 8;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_check(m, "kept");
  cr_assert_eq(test_model_stored(m, 0), 12);
  test_model_destroy(m);
}

/* A chunk that is all sinks loses nothing: no context above the budget would fit. */
Test(chunks, with_a_budget_in_tokens_have_more_than_sinks) {
  EXPECT_NO_POLICY("custom:budget=37,chunk=2", "chunk 2 <= sink 4",
                   "budget 37");
  EXPECT_NO_POLICY("knorm:budget=37,chunk=4", "chunk 4 <= sink 4");
  EXPECT_NO_POLICY("knorm:budget=100,chunk=20,sink=0.25", "chunk 20 <= sink 25",
                   "budget 100");
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  EXPECT_OK(
      kvevict_policy_resolve(test_policy("knorm:budget=37,chunk=5"), 38, &r));
  cr_expect_eq(r.budget, 37);
  /* A ratio keeps all. */
  EXPECT_OK(
      kvevict_policy_resolve(test_policy("knorm:budget=0.5,chunk=4"), 38, &r));
  cr_expect_eq(r.budget, 38);

  const double budgets[] = {0.5, 20};
  test_model* m = test_model_of("knorm:budget=0.5,chunk=4", 1);
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.layer_budgets = budgets;
  options.layer_budgets_len = 2;
  kvevict_plan* plan = NULL;
  EXPECT_INVALID(kvevict_plan_create(m->context, &m->geometry, m->policy_handle,
                                     &options, &plan),
                 "layer_budgets[1]", "chunk 4 <= sink 4", "budget 20");
  test_model_destroy(m);
}

/* ---- What does not go together ---- */

Test(chunks, have_no_meaning_with_budgets_of_heads) {
  kvevict_layer_geometry layer = test_layer(2, 2, 16, 16);
  kvevict_geometry geometry = test_geometry(1, 100, &layer);
  kvevict_context* const context = test_context();
  const uint32_t budgets[] = {20, 30};
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets = budgets;
  options.head_budgets_len = 2;
  kvevict_plan* plan = NULL;
  const kvevict_policy* policy = test_policy("knorm:sink=0,budget=20,chunk=64");
  EXPECT_INVALID(
      kvevict_plan_create(context, &geometry, policy, &options, &plan),
      "head_budgets", "chunk 64");
}

Test(chunks, begin_with_a_block) {
  test_model_spec spec = test_small_model("knorm:sink=0,budget=30,chunk=24");
  spec.layout = TEST_PAGED_16;
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 90);
  EXPECT_FAILS(test_model_evict(m, NULL, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "views[0].block_size 16", "chunk 24");
  test_model_check(m, "refused");
  test_model_destroy(m);
}

Test(chunks, doors_take_one_at_a_time) {
  kvevict_layer_geometry layer = test_layer(2, 2, kDim, kDim);
  kvevict_geometry geometry = test_geometry(1, 100, &layer);
  static float rows[2 * 100 * kDim], scores[2 * 100];
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 2;
  view.k = kvevict_plane_head_major(rows, KVEVICT_DTYPE_F32, 100, kDim);
  test_plan* plan = test_plan_create("knorm:sink=0,budget=0.5,chunk=64",
                                     &geometry, KVEVICT_OPERATION_SCORE, 1);
  EXPECT_OK(test_score(plan, NULL, &view, 64, scores, 128));
  EXPECT_FAILS(test_score(plan, NULL, &view, 65, scores, 130),
               KVEVICT_ERROR_UNSUPPORTED, "n_tokens 65", "chunk 64");
  kvevict_select_options select = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  EXPECT_OK(kvevict_plan_selection(plan->plan, 0, 64, 0, &select, &keep));
  cr_assert_eq(keep.count, 32);
  EXPECT_FAILS(kvevict_plan_selection(plan->plan, 0, 65, 0, &select, &keep),
               KVEVICT_ERROR_UNSUPPORTED, "n_tokens 65", "chunk 64");
  test_plan_destroy(plan);
}

/* Scores and scratch are sized for one chunk. */
Test(chunks, need_little_workspace) {
  kvevict_layer_geometry layer = test_layer(8, 8, 128, 128);
  kvevict_geometry geometry = test_geometry(32, 65536, &layer);
  size_t bytes[2];
  for (int i = 0; i < 2; ++i) {
    test_plan* plan = test_plan_create_least_for(
        NULL,
        i == 0 ? "knorm:sink=0,budget=1024"
               : "knorm:sink=0,budget=1024,chunk=1024",
        &geometry, KVEVICT_OPERATION_EVICT, 1);
    bytes[i] = plan->workspace_bytes;
    test_plan_destroy(plan);
  }
  const size_t lists = (size_t)32 * 8 * 1024 * sizeof(int32_t);
  cr_assert_geq(bytes[0], lists + (size_t)8 * 65536 * sizeof(float));
  cr_assert_leq(bytes[1], lists + (size_t)2 * 8 * 1024 * sizeof(float));
}
