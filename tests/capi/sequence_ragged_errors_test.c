/* Plans with a budget for every KV head, and their sequences, refuse these. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

Test(ragged_errors, bad_budgets_of_heads_are_errors) {
  test_model* m = test_model_of("random:sink=0", 1);
  const uint32_t budgets[4] = {1, 2, 3, 4};
  kvevict_plan* plan;
  GUARD(plan);
  GROWN(kvevict_plan_options) grown = {KVEVICT_PLAN_OPTIONS_INIT};
  kvevict_plan_options* o = &grown.value;
  const kvevict_policy* policy = m->policy_handle;
#define CREATE() kvevict_plan_create(m->context, &m->geometry, policy, o, &plan)
  o->head_budgets = budgets;
  for (size_t len = 0; len < 6; ++len) {
    if (len == 4) continue;
    char text[40];
    snprintf(text, sizeof text, "head_budgets_len %zu", len);
    o->head_budgets_len = len;
    EXPECT_INVALID(CREATE(), text, "4");
  }
  o->head_budgets = NULL;
  o->head_budgets_len = 4;
  EXPECT_INVALID(CREATE(), "head_budgets", "NULL", "4");
  o->head_budgets = budgets;
  o->draft_tokens = 0x80000000;
  EXPECT_INVALID(CREATE(), "options.draft_tokens 2147483648 > 2147483647");
  o->draft_tokens = 0;
  policy = test_policy("random:sink=0,scope=layer");
  EXPECT_INVALID(CREATE(), "head_budgets", "scope layer");
  policy = test_policy("random:sink=0,scope=model");
  EXPECT_INVALID(CREATE(), "head_budgets", "scope model");
  EXPECT_UNTOUCHED(plan);
  policy = m->policy_handle;
  EXPECT_CHECKS_STRUCT_SIZE(grown,
                            (plan = NULL, CREATE()) == KVEVICT_OK
                                ? (kvevict_plan_destroy(plan), KVEVICT_OK)
                                : KVEVICT_ERROR_INVALID_ARGUMENT);
  test_model_destroy(m);
}

/* A head's budget below what must stay can never be kept. */
Test(ragged_errors, budgets_of_heads_below_what_must_stay_are_errors) {
  static const struct {
    const char *policy, *text;
    uint32_t least;
  } kCases[] = {
      {"snapkv:budget=60,sink=2,window=8", "sink 2 + recent 8", 10},
      {"streaming-llm:budget=60,sink=9", "sink 9 + recent 1", 10},
      {"random:budget=60,sink=4,recent=6", "sink 4 + recent 6", 10},
      {"custom:budget=60,sink=4,recent=6,select_block=4",
       "sink 4 + recent 6, in whole blocks of 4", 10},
  };
  for (int i = 0; i < 4; ++i) {
    uint32_t budgets[4] = {40, 40, 40, kCases[i].least - 1};
    char number[48];
    snprintf(number, sizeof number, "head_budgets[3] %u", budgets[3]);
    test_model* m = test_model_of(kCases[i].policy, 1);
    kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
    options.head_budgets = budgets;
    options.head_budgets_len = 4;
    kvevict_plan* plan = NULL;
    EXPECT_INVALID(kvevict_plan_create(m->context, &m->geometry,
                                       m->policy_handle, &options, &plan),
                   number, kCases[i].text);
    budgets[3] = kCases[i].least;
    EXPECT_OK(kvevict_plan_create(m->context, &m->geometry, m->policy_handle,
                                  &options, &plan));
    kvevict_plan_destroy(plan);
    test_model_destroy(m);
  }
}

/* Protected tokens count only in heads that hold them. */
Test(ragged_errors, protected_positions_have_to_fit_each_head) {
  const uint32_t budgets[4] = {30, 4, 30, 30};
  test_model_spec spec = test_small_model("random:sink=1,recent=1");
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, (test_random){1});
  const int32_t protect[3] = {10, 20, 30};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.protected_positions = protect;
  options.protected_positions_len = 3;
  test_model_step(m, 70);
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 0", "budget 4",
                 "sink 1", "recent 1", "3 protected");
  options.protected_positions_len = 2;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_check(m, "two protected");
  int32_t positions[4];
  test_model_positions(m, 0, 1, positions);
  cr_expect(positions[0] == 0 && positions[1] == 10 && positions[2] == 20 &&
            positions[3] == 69);
  /* A token that the head has lost does not count. */
  test_model_step(m, 20);
  options.protected_positions_len = 3;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_check(m, "one of three held");
  test_model_destroy(m);
}

Test(ragged_errors, questions_are_of_a_heads_own_length) {
  const uint32_t budgets[4] = {20, 30, 40, 50};
  test_model_spec spec = test_small_model("random");
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_step(m, 70);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  int32_t positions[60];
  size_t n = 0;
  EXPECT_OK(
      kvevict_sequence_position_of_slot(m->sequence, 0, 1, 29, positions));
  EXPECT_INVALID(
      kvevict_sequence_position_of_slot(m->sequence, 0, 0, 20, positions),
      "slot 20", "20");
  EXPECT_INVALID(
      kvevict_sequence_keep_positions(m->sequence, 1, 0, positions, 39, &n),
      "39", "40");
  EXPECT_OK(
      kvevict_sequence_keep_positions(m->sequence, 0, 0, positions, 20, &n));
  cr_expect_eq(n, 20);
  EXPECT_INVALID(kvevict_sequence_append(m->sequence, 51, NULL), "51", "50",
                 "100");
  EXPECT_OK(kvevict_sequence_append(m->sequence, 50, NULL));
  EXPECT_INVALID(kvevict_sequence_trim_to(m->sequence, 69, NULL), "69", "70");
  test_model_destroy(m);
}
