/* What a budget for every KV head changes in a sequence, and what it does not. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

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
