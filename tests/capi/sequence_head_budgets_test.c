/* What a budget for every KV head changes in a sequence, and what it does not. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

/* The policy's own budget is not used, so it need not hold what must stay. */
Test(ragged, the_policys_own_budget_plays_no_part) {
  const uint32_t budgets[4] = {20, 30, 40, 100};
  test_model_spec spec = test_small_model("snapkv:budget=0.1,sink=2,window=8");
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, (test_random){3});
  test_model_step(m, 60);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  const uint32_t want[4] = {20, 30, 40, 60};
  for (uint32_t i = 0; i < 4; ++i) {
    cr_expect_eq(test_model_stored_of(m, i / 2, i % 2), want[i]);
  }
  test_model_check(m, "a ratio too small");
  test_model_destroy(m);
}

Test(ragged, reset_forgets_the_lengths_of_heads) {
  const uint32_t budgets[4] = {20, 30, 40, 50};
  test_model_spec spec = test_small_model("random");
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, (test_random){4});
  for (int i = 0; i < 3; ++i) {
    test_model_step(m, 70);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    test_model_check(m, "before a reset");
    for (uint32_t h = 0; h < 4; ++h) {
      cr_expect_eq(test_model_stored_of(m, h / 2, h % 2), budgets[h]);
    }
    EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    m->n_seen = 0;
    for (uint32_t h = 0; h < 4; ++h) {
      cr_expect_eq(test_model_stored_of(m, h / 2, h % 2), 0);
    }
  }
  test_model_destroy(m);
}

/* Two layers with one cache keep what the first one's heads say. */
Test(ragged, layers_of_one_cache_are_evicted_once) {
  const uint32_t budgets[4] = {20, 30, 90, 5};
  test_model_spec spec = test_small_model("random:sink=0,recent=0");
  spec.head_budgets = budgets;
  test_model* m = test_model_create(&spec, (test_random){5});
  test_model_step(m, 70);
  m->views[1] = m->views[0];
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(test_model_evict(m, NULL, &report));
  cr_expect_eq(report.tokens_before, 70);
  cr_expect_eq(report.tokens_after, 30);
  for (uint32_t i = 0; i < 4; ++i) {
    cr_expect_eq(test_model_stored_of(m, i / 2, i % 2), budgets[i % 2]);
  }
  for (uint32_t h = 0; h < 2; ++h) {
    int32_t a[100], b[100];
    test_model_positions(m, 0, h, a);
    test_model_positions(m, 1, h, b);
    cr_expect(memcmp(a, b, budgets[h] * sizeof *a) == 0);
  }
  test_model_destroy(m);
}
