#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/policy.h"

enum { kMaxLayers = 80 };

static void ExpectResolved(const kvevict_policy* handle,
                           const oracle_policy* policy, uint32_t n_context,
                           const char* text) {
  kvevict_resolved_policy expected = {.struct_size = sizeof expected};
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  if (!oracle_resolve(policy, n_context, &expected)) {
    EXPECT(kvevict_policy_resolve(handle, n_context, &r) ==
               KVEVICT_ERROR_INVALID_ARGUMENT,
           "%s of %u is no error", text, n_context);
    return;
  }
  EXPECT_OK(kvevict_policy_resolve(handle, n_context, &r));
  EXPECT(memcmp(&r, &expected, sizeof r) == 0,
         "%s of %u: budget %u sink %u recent %u selected %u", text, n_context,
         r.budget, r.n_sink, r.n_recent, r.n_selected);
  EXPECT(r.budget == r.n_sink + r.n_recent + r.n_selected, "%s: sum", text);
}

Test(policy_budgets, agree_with_the_oracle) {
  static const char* const kSplits[] = {"uniform", "geometric",
                                        "arithmetic-kvf", "arithmetic-kvpress",
                                        "arithmetic-adakv"};
  test_random random = test_random_start("policy_budgets oracle");
  uint32_t n_evicting = 0;
  for (int i = 0; i < 10000; ++i) {
    kvevict_policy* handle = test_random_policy(&random);
    /* Every split is allowed if the policy has one. */
    (void)kvevict_policy_set(handle, "scope", "head");
    (void)kvevict_policy_set(handle, "split",
                             kSplits[test_random_below(&random, 5)]);
    const uint32_t n_layers = test_random_between(&random, 1, kMaxLayers);
    const uint32_t n_context =
        1 + test_random_below(&random, 1u << test_random_below(&random, 20));
    /* A lazy layer's share may be too small. */
    if (kvevict_policy_validate(handle) != KVEVICT_OK) continue;
    const oracle_policy policy = oracle_policy_of(handle);
    char text[TEST_POLICY_TEXT];
    EXPECT_OK(kvevict_policy_format(handle, text, sizeof text, NULL));
    ExpectResolved(handle, &policy, n_context, text);
    uint32_t expected[kMaxLayers], budgets[kMaxLayers];
    GUARD(budgets);
    if (!oracle_layer_budgets(&policy, n_context, expected, n_layers)) {
      EXPECT(
          kvevict_policy_layer_budgets(handle, n_context, budgets, n_layers) ==
              KVEVICT_ERROR_INVALID_ARGUMENT,
          "%s of %u is no error", text, n_context);
      EXPECT_UNTOUCHED(budgets);
      continue;
    }
    EXPECT_OK(
        kvevict_policy_layer_budgets(handle, n_context, budgets, n_layers));
    for (uint32_t l = 0; l < n_layers; ++l) {
      EXPECT(budgets[l] == expected[l],
             "%s of %u, %u layers: layer %u keeps %u, not %u", text, n_context,
             n_layers, l, budgets[l], expected[l]);
    }
    n_evicting += budgets[0] < n_context;
  }
  cr_assert(n_evicting > 1000, "only %u random policies evict", n_evicting);
}

Test(policy_budgets, bad_arguments_are_errors) {
  const kvevict_policy* policy = test_policy("snapkv:budget=2048");
  uint32_t budgets[4];
  GUARD(budgets);
  EXPECT_INVALID(kvevict_policy_layer_budgets(NULL, 4096, budgets, 4), "policy",
                 "NULL");
  EXPECT_INVALID(kvevict_policy_layer_budgets(policy, 4096, NULL, 4), "budgets",
                 "NULL");
  EXPECT_INVALID(kvevict_policy_layer_budgets(policy, 4096, budgets, 0),
                 "budgets_len", "0");
  EXPECT_INVALID(kvevict_policy_layer_budgets(policy, 0, budgets, 4),
                 "n_context", "0");
  EXPECT_INVALID(kvevict_policy_layer_budgets(policy, 2147483648u, budgets, 4),
                 "n_context", "2147483648");
  kvevict_policy* bad = test_policy_copy(policy);
  EXPECT_OK(kvevict_policy_set_number(bad, "budget", 36));
  EXPECT_INVALID(kvevict_policy_layer_budgets(bad, 4096, budgets, 4),
                 "sink 4 + window 32 >= budget 36");
  EXPECT_UNTOUCHED(budgets);
}

Test(auto_budget, is_a_quarter_within_bounds_and_0_for_small_caches) {
  const uint64_t mib256 = UINT64_C(256) << 20;
  const struct {
    uint32_t max_tokens;
    uint64_t bytes;
    uint32_t budget;
  } kRows[] = {
      {16384, 0, 0},
      {16384, mib256 - 1, 0},
      {16384, mib256, 4096},
      {16383, mib256, 4095},
      {16388, mib256, 4096},
      {131072, UINT64_MAX, 4096},
      {2147483647, mib256, 4096},
      {8192, mib256, 2048},
      {4100, mib256, 1025},
      {4096, mib256, 1024},
      {4095, mib256, 1024},
      {1024, mib256, 1024},
      {1023, mib256, 1023},
      {1, mib256, 1},
  };
  for (size_t i = 0; i < sizeof kRows / sizeof kRows[0]; ++i) {
    uint32_t budget = 12345;
    EXPECT_OK(
        kvevict_auto_budget(kRows[i].max_tokens, kRows[i].bytes, &budget));
    EXPECT(budget == kRows[i].budget, "%u tokens: %u, not %u",
           kRows[i].max_tokens, budget, kRows[i].budget);
  }
}

Test(auto_budget, bad_arguments_are_errors) {
  uint32_t budget;
  GUARD(budget);
  EXPECT_INVALID(kvevict_auto_budget(0, 1, &budget), "max_tokens", "0");
  EXPECT_INVALID(kvevict_auto_budget(2147483648u, 1, &budget), "max_tokens",
                 "2147483648");
  EXPECT_INVALID(kvevict_auto_budget(4096, 1, NULL), "out_budget", "NULL");
  EXPECT_UNTOUCHED(budget);
}

Test(policy_resolve, bad_arguments_are_errors) {
  const kvevict_policy* policy = test_policy("snapkv:budget=2048");
  kvevict_resolved_policy r;
  GUARD(r);
  r.struct_size = sizeof r;
  const kvevict_resolved_policy before = r;
  EXPECT_INVALID(kvevict_policy_resolve(NULL, 4096, &r), "policy", "NULL");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 4096, NULL), "out", "NULL");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 0, &r), "n_context", "0");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 2147483648u, &r), "n_context",
                 "2147483648", "2147483647");
  kvevict_policy* bad = test_policy_copy(policy);
  EXPECT_OK(kvevict_policy_set_number(bad, "budget", 36));
  EXPECT_INVALID(kvevict_policy_resolve(bad, 4096, &r),
                 "sink 4 + window 32 >= budget 36");
  cr_assert(memcmp(&r, &before, sizeof r) == 0, "out was written");
}

Test(policy_resolve, struct_size_is_checked) {
  const kvevict_policy* policy = test_policy("none");
  GROWN(kvevict_resolved_policy) r = {{.struct_size = sizeof r.value}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(r,
                                kvevict_policy_resolve(policy, 100, &r.value));
}
