#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(preset, every_preset_is_its_policy_text) {
  uint32_t n = 0;
  for (;; ++n) {
    kvevict_preset_info info = {.struct_size = sizeof info};
    if (kvevict_preset_at(n, &info) != KVEVICT_OK) break;
    cr_expect_eq(info.struct_size, sizeof info);
    cr_expect_eq(info.reserved, 0);
    cr_expect(strlen(info.reproduces) > 0);
    cr_assert(
        test_same_policy(test_policy(info.name), test_policy(info.policy_text)),
        "%s", info.name);
  }
  cr_assert_geq(n, 4);
}

Test(preset, keys_after_a_preset_change_it) {
  kvevict_policy* expected = test_policy("snapkv-kvpress");
  EXPECT_OK(kvevict_policy_set_number(expected, "budget", 0.25));
  EXPECT_OK(kvevict_policy_set_number(expected, "window", 16));
  cr_assert(test_same_policy(
      test_policy("snapkv-kvpress:budget=0.25,window=16"), expected));
}

Test(preset, original_snapkv_has_the_published_numbers) {
  const oracle_policy p = oracle_policy_from("snapkv-original");
  cr_expect_eq(p.kind, ORACLE_SNAPKV);
  cr_expect_eq(p.sink, 0);
  cr_expect_eq(p.window, 32);
  cr_expect_eq(p.keep_window, 1);
  cr_expect_eq(p.pool, ORACLE_POOL_AVG);
  cr_expect_eq(p.pool_width, 5);
  cr_expect_eq(p.edge, ORACLE_EDGE_PAD);
  cr_expect_eq(p.rows, KVEVICT_REDUCE_SUM);
  cr_expect_eq(p.budget, 2048.0);
}

Test(preset, kvpress_pools_each_query_head_before_the_group_mean) {
  const oracle_policy p = oracle_policy_from("snapkv-kvpress");
  cr_expect_eq(p.kind, ORACLE_SNAPKV);
  cr_expect_eq(p.sink, 0);
  cr_expect_eq(p.window, 64);
  cr_expect_eq(p.pool, ORACLE_POOL_AVG);
  cr_expect_eq(p.pool_width, 5);
  cr_expect_eq(p.rows, KVEVICT_REDUCE_MEAN);
  cr_expect_eq(p.group, KVEVICT_REDUCE_MEAN);
  cr_expect_eq(p.order, ORACLE_ORDER_POOL_REDUCE);
}

Test(preset, kvpress_expected_attention_weighs_by_norms) {
  const oracle_policy p = oracle_policy_from("expected-attention-kvpress");
  cr_expect_eq(p.kind, ORACLE_EXPECTED_ATTENTION);
  cr_expect_eq(p.budget, 0.5);
  cr_expect_eq(p.sink, 4);
  cr_expect_eq(p.recent, 0);
  cr_expect_eq(p.pool, ORACLE_POOL_NONE);
  cr_expect_eq(p.group, KVEVICT_REDUCE_MEAN);
  cr_expect_eq(p.weight, ORACLE_WEIGHT_NORM);
  cr_expect_eq(p.epsilon, 0.0);
}

Test(preset, sharpinference_sums_everything_into_one_list) {
  const oracle_policy p = oracle_policy_from("snapkv-sharpinference");
  cr_expect_eq(p.recent, 64);
  cr_expect_eq(p.pool, ORACLE_POOL_NONE);
  cr_expect_eq(p.group, KVEVICT_REDUCE_SUM);
  cr_expect_eq(p.scope, KVEVICT_SCOPE_MODEL);
  cr_expect_eq(p.over, KVEVICT_REDUCE_SUM);
}

Test(preset, web_llm_has_its_configuration_layers_numbers) {
  const oracle_policy p = oracle_policy_from("snapkv-web-llm");
  cr_expect_eq(p.sink, 4);
  cr_expect_eq(p.window, 32);
  cr_expect_eq(p.pool_width, 7);
}

Test(preset, enumeration_ends_with_an_error_and_untouched_output) {
  uint32_t n = 0;
  kvevict_preset_info info = {.struct_size = sizeof info};
  while (kvevict_preset_at(n, &info) == KVEVICT_OK) ++n;
  GUARD(info);
  info.struct_size = sizeof info;
  const kvevict_preset_info before = info;
  EXPECT_INVALID(kvevict_preset_at(n, &info), "index");
  EXPECT_INVALID(kvevict_preset_at(UINT32_MAX, &info), "index");
  cr_assert(memcmp(&info, &before, sizeof info) == 0);
  EXPECT_INVALID(kvevict_preset_at(0, NULL), "out", "NULL");
  GROWN(kvevict_preset_info) grown = {{.struct_size = 0}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(grown, kvevict_preset_at(0, &grown.value));
}
