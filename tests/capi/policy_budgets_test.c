#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/policy.h"

enum { kMaxLayers = 80 };

static void Budgets(const char* text, uint32_t n_context, uint32_t* budgets,
                    uint32_t n_layers) {
  const kvevict_policy* policy = test_policy(text);
  EXPECT_OK(kvevict_policy_layer_budgets(policy, n_context, budgets, n_layers));
}

static uint64_t Sum(const uint32_t* budgets, uint32_t n) {
  uint64_t sum = 0;
  for (uint32_t l = 0; l < n; ++l) sum += budgets[l];
  return sum;
}

/* These numbers were worked out by hand. */
static const struct {
  const char* policy;
  uint32_t n_context, n_layers;
  uint32_t budgets[4];
} kByHand[] = {
    {"none", 100, 2, {100, 100}},
    {"snapkv:budget=50", 100, 3, {50, 50, 50}},
    {"snapkv:budget=50", 50, 3, {50, 50, 50}},
    {"snapkv:budget=50", 20, 3, {20, 20, 20}},
    {"streaming-llm:recent=6", 100, 2, {10, 10}},
    /* One each, then 18 tokens by 4 : 2 : 1, which is 10.3, 5.1 and 2.6. */
    {"custom:budget=7,sink=0,split=geometric,alpha=0.5", 100, 3, {11, 6, 4}},
    /* 14 by 2 : 1 is 9.33 and 4.67: the larger remainder rounds up */
    {"custom:budget=8,sink=0,split=geometric,alpha=0.5", 100, 2, {10, 6}},
    /* what must stay is on top of the share: 3 + {12, 6, 3} */
    {"custom:budget=10,sink=2,recent=1,split=geometric,alpha=0.5",
     100,
     3,
     {15, 9, 6}},
    {"pyramidkv:budget=43,alpha=0.5", 400, 3, {48, 42, 39}},
    {"pyramidkv:budget=43,alpha=1", 400, 3, {43, 43, 43}},
    {"pyramidkv:budget=43,alpha=0.5", 400, 1, {43}},
    /* No layer keeps more than there is, and the sum stays. */
    {"custom:budget=7,sink=0,split=geometric,alpha=0.5", 10, 3, {10, 7, 4}},
    {"custom:budget=7,sink=0,split=geometric,alpha=0.0001", 10, 3, {10, 10, 1}},
    /* One each, then 16 by 64 : 16 : 4 : 1 fills the first layer. The other 7 are
     * 5 1/3, 1 1/3 and 1/3, and the lower layer of equal remainders rounds up. */
    {"custom:budget=5,sink=0,split=geometric,alpha=0.25", 10, 4, {10, 7, 2, 1}},
    /* Nothing is left but the one each. */
    {"custom:budget=1.5,sink=0,split=geometric,alpha=0.25", 9, 4, {1, 1, 1, 1}},
    /* c = 96, lowest 4, highest 188, step 184 / 3 = 61, and the window of 32 */
    {"snapkv:budget=128,sink=0,split=arithmetic-kvf",
     4096,
     4,
     {220, 159, 98, 37}},
    /* S < 2c: uniform */
    {"snapkv:budget=128,sink=0,split=arithmetic-kvf",
     191,
     4,
     {128, 128, 128, 128}},
    /* highest 188 >= 193 - 32 = 161: highest 161, lowest 31, step 43 */
    {"snapkv:budget=128,sink=0,split=arithmetic-kvf",
     193,
     4,
     {193, 150, 107, 64}},
    {"snapkv:budget=128,sink=0,split=arithmetic-kvf", 4096, 1, {128}},
    /* lowest 1280/20 = 64, highest 2496; (2496 - 64) / 3 = 810.67 */
    {"snapkv:budget=0.3125,sink=0,window=64,split=arithmetic-kvpress",
     4096,
     4,
     {2496, 1685, 875, 64}},
    /* Under 20 windows the published schedule is uniform. */
    {"snapkv:budget=0.25,sink=0,window=64,split=arithmetic-kvpress",
     4096,
     4,
     {1024, 1024, 1024, 1024}},
    /* Half of the context stays: highest 1021 - 64 = 957, lowest 64. */
    {"pyramidkv-kvpress:budget=0.5", 1021, 2, {957, 64}},
    {"pyramidkv-kvpress:budget=0.49", 1021, 2, {500, 500}},
    {"snapkv:budget=200,sink=0,window=64,split=arithmetic-kvpress",
     4096,
     1,
     {200}},
    /* AdaKV from 2c on is as KVCache-Factory. */
    {"snapkv:budget=128,sink=0,split=arithmetic-adakv",
     4096,
     4,
     {220, 159, 98, 37}},
    {"snapkv:budget=128,sink=0,split=arithmetic-adakv",
     193,
     4,
     {193, 150, 107, 64}},
    /* AdaKV below 2c: highest 191 - 32 = 159, lowest 33, step 42. */
    {"snapkv:budget=128,sink=0,split=arithmetic-adakv",
     191,
     4,
     {191, 149, 107, 65}},
    /* highest 150 - 32 = 118, lowest 74, step 14 */
    {"snapkv:budget=128,sink=0,split=arithmetic-adakv",
     150,
     4,
     {150, 136, 122, 108}},
    {"snapkv:budget=128,sink=0,split=arithmetic-adakv",
     128,
     4,
     {128, 128, 128, 128}},
    {"snapkv:budget=128,sink=0,split=arithmetic-adakv", 4096, 1, {128}},
    /* In whole blocks of 20, 105 tokens are 5 and a quarter, 52 hold 2 and that
     * quarter, and half of 6 are 3 with it. */
    {"custom:budget=52,sink=0,select_block=20", 105, 2, {45, 45}},
    {"custom:budget=0.5,sink=0,select_block=20", 105, 2, {45, 45}},
    {"custom:budget=64,sink=0,select_block=20", 105, 1, {45}},
    {"custom:budget=65,sink=0,select_block=20", 105, 1, {65}},
    {"custom:budget=59,sink=0,select_block=20", 100, 1, {40}},
    {"custom:budget=100,sink=0,select_block=20", 100, 1, {100}},
    /* At least one block stays. */
    {"custom:budget=0.01,sink=0,select_block=20", 105, 1, {5}},
    {"custom:budget=0.01,sink=0,select_block=20", 100, 1, {20}},
    /* The last block of 10 tokens, and of 3 * 6 blocks by 4 : 2 : 1 10.3, 5.1
     * and 2.6. */
    {"custom:budget=130,sink=0,select_block=20,split=geometric,alpha=0.5",
     390,
     3,
     {210, 110, 70}},
    /* the sink's block and the last of 32 tokens, of which 2 are in a third */
    {"snapkv:budget=110,select_block=16", 258, 2, {98, 98}},
    {"streaming-llm:budget=100,select_block=16", 258, 1, {98}},
};

Test(policy_budgets, are_those_worked_by_hand) {
  for (size_t i = 0; i < sizeof kByHand / sizeof kByHand[0]; ++i) {
    uint32_t budgets[4] = {0};
    Budgets(kByHand[i].policy, kByHand[i].n_context, budgets,
            kByHand[i].n_layers);
    for (uint32_t l = 0; l < kByHand[i].n_layers; ++l) {
      EXPECT(budgets[l] == kByHand[i].budgets[l],
             "%s of %u: layer %u keeps %u, not %u", kByHand[i].policy,
             kByHand[i].n_context, l, budgets[l], kByHand[i].budgets[l]);
    }
  }
}

Test(policy_budgets, geometric_sum_is_exact_and_falls_with_the_layer) {
  const char* const kAlphas[] = {"1", "0.99", "0.7", "0.5", "0.1", "1e-9"};
  for (int a = 0; a < 6; ++a) {
    for (uint32_t n = 1; n <= kMaxLayers; n += n < 4 ? 1 : 19) {
      char text[64];
      snprintf(text, sizeof text, "pyramidkv:budget=2048,alpha=%s", kAlphas[a]);
      uint32_t budgets[kMaxLayers];
      Budgets(text, 16384, budgets, n);
      EXPECT(Sum(budgets, n) == UINT64_C(2048) * n, "%s, %u layers: sum %llu",
             text, n, (unsigned long long)Sum(budgets, n));
      for (uint32_t l = 0; l < n; ++l) {
        EXPECT(budgets[l] >= 36 && budgets[l] <= 16384, "%s: layer %u", text,
               l);
        EXPECT(l == 0 || budgets[l] <= budgets[l - 1], "%s: layer %u", text, l);
      }
    }
  }
}

/* The source's floor divisions let the total run over by 11.3 %, 1.3 % and 0.5
 * % with 32 layers and a window of 32. */
Test(policy_budgets, kvf_sum_runs_over_as_published) {
  const struct {
    uint32_t cap;
    double percent;
  } kRows[] = {{128, 11.3}, {512, 1.3}, {2048, 0.5}};
  for (int i = 0; i < 3; ++i) {
    char text[64];
    snprintf(text, sizeof text,
             "pyramidkv:budget=%u,sink=0,split=arithmetic-kvf", kRows[i].cap);
    uint32_t budgets[32];
    Budgets(text, 100000, budgets, 32);
    const double over =
        100.0 * ((double)Sum(budgets, 32) / (32.0 * kRows[i].cap) - 1.0);
    cr_assert(over > kRows[i].percent - 0.05 && over < kRows[i].percent + 0.05,
              "cap %u runs over by %.2f %%", kRows[i].cap, over);
  }
}

Test(policy_budgets, agree_with_the_oracle) {
  static const char* const kSplits[] = {"uniform", "geometric",
                                        "arithmetic-kvf", "arithmetic-kvpress",
                                        "arithmetic-adakv"};
  test_random random = test_random_start("policy_budgets oracle");
  uint32_t n_evicting = 0;
  for (int i = 0; i < 20000; ++i) {
    kvevict_policy* handle = test_random_policy(&random);
    /* Every split is allowed if the policy has one. */
    (void)kvevict_policy_set(handle, "scope", "head");
    (void)kvevict_policy_set(handle, "split",
                             kSplits[test_random_below(&random, 5)]);
    const uint32_t n_layers = test_random_between(&random, 1, kMaxLayers);
    const uint32_t n_context =
        1 + test_random_below(&random, 1u << test_random_below(&random, 18));
    /* A lazy layer's share may be too small. */
    if (kvevict_policy_validate(handle) != KVEVICT_OK) continue;
    const oracle_policy policy = oracle_policy_of(handle);
    char text[TEST_POLICY_TEXT];
    EXPECT_OK(kvevict_policy_format(handle, text, sizeof text, NULL));
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
  cr_assert(n_evicting > 2000, "only %u random policies evict", n_evicting);
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
