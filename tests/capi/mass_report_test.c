/* kvevict_sequence_report() says which share of the mass each list keeps: of attention, or
 * that it is not known. sequence_life_test.c has given scores. */
#include <math.h>

#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

enum { kMaxTokens = 400, kHeads = 2, kLayers = 2, kMostLists = 4 };

static test_model* Model(const char* policy, uint32_t report_mass) {
  test_model_spec spec = test_small_model(policy);
  spec.max_tokens = kMaxTokens;
  spec.max_positions = 2 * kMaxTokens;
  spec.report_mass = report_mass;
  return test_model_create(&spec, (test_random){5});
}

static uint32_t Ask(const test_model* m, kvevict_list_report* lists) {
  kvevict_layer_info info = {.struct_size = sizeof info};
  EXPECT_OK(kvevict_plan_layer(m->plan, kLayers - 1, &info));
  const uint32_t n = info.first_list + info.n_lists;
  for (uint32_t i = 0; i < n; ++i) {
    lists[i] = (kvevict_list_report)KVEVICT_LIST_REPORT_INIT;
  }
  EXPECT_OK(kvevict_sequence_report(m->sequence, NULL, lists, n));
  return n;
}

/* All lists report the same. */
static void ExpectAll(const test_model* m, float kept, float largest,
                      const char* what) {
  kvevict_list_report lists[kMostLists];
  const uint32_t n = Ask(m, lists);
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT(isnan(kept) ? isnan(lists[i].mass_kept) &&
                             isnan(lists[i].largest_mass_evicted)
                       : lists[i].mass_kept == kept &&
                             lists[i].largest_mass_evicted == largest,
           "%s: list %u kept %g, and lost %g", what, i,
           (double)lists[i].mass_kept, (double)lists[i].largest_mass_evicted);
  }
}

/* The oracle's weights give the mass without the window's own tokens, up to the
 * rounding of some 100 products and sums. */
Test(report_mass, of_attention_leaves_the_window_out) {
  test_model* m = Model("snapkv:budget=60,window=8,pool=none", 1);
  test_model_step(m, 190);
  static double scores[kHeads * kMaxTokens];
  test_model_oracle_scores(m, 1, scores);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  kvevict_list_report lists[kMostLists];
  cr_assert_eq(Ask(m, lists), 4);
  for (uint32_t h = 0; h < kHeads; ++h) {
    int32_t positions[kMaxTokens];
    test_model_positions(m, 1, h, positions);
    double all = 0.0, kept = 0.0, largest = 0.0;
    for (uint32_t i = 0, next = 0; i < 190 - 8; ++i) {
      const double score = scores[h * 190 + i];
      const bool stays = positions[next] == (int32_t)i;
      next += stays;
      all += score;
      if (stays) kept += score;
      if (!stays) largest = fmax(largest, score);
    }
    EXPECT(
        fabs((double)lists[2 + h].mass_kept - kept / all) < 1e-5 &&
            fabs((double)lists[2 + h].largest_mass_evicted - largest / all) <
                1e-5,
        "head %u: %g and %g, not %g and %g", h, (double)lists[2 + h].mass_kept,
        (double)lists[2 + h].largest_mass_evicted, kept / all, largest / all);
    EXPECT(kept / all > 0.05 && kept / all < 0.95, "%g", kept / all);
  }
  test_model_destroy(m);
}

Test(report_mass, is_unknown_where_nothing_is_measured) {
  static const struct {
    const char* policy;
    uint32_t report_mass;
  } kCases[] = {{"snapkv:budget=60,window=8", 0},
                {"knorm:budget=60", 1},
                {"keydiff:budget=60", 1},
                {"random:budget=60", 1},
                {"streaming-llm:budget=60", 1},
                {"r-kv:budget=60", 1},
                {"none", 1}};
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    test_model* m = Model(kCases[i].policy, kCases[i].report_mass);
    test_model_step(m, 90);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    ExpectAll(m, NAN, NAN, kCases[i].policy);
    test_model_destroy(m);
  }
}

Test(report_mass, of_what_loses_nothing_is_whole) {
  test_model* m = Model("snapkv:budget=60,window=8", 1);
  ExpectAll(m, NAN, NAN, "before any eviction");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  ExpectAll(m, 1.0f, 0.0f, "of nothing");
  test_model_step(m, 50);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  ExpectAll(m, 1.0f, 0.0f, "within the budget");
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  ExpectAll(m, NAN, NAN, "reset");
  test_model_destroy(m);
}

/* Layer 0 loses one of its last 12 tokens, and layer 1 half of each chunk. */
Test(report_mass, of_chunks_that_a_layer_keeps_whole_is_not_counted) {
  static const double kBudgets[] = {59, 30};
  test_model_spec spec = test_small_model("custom:sink=0,budget=40,chunk=48");
  spec.layer_budgets = kBudgets;
  spec.report_mass = 1;
  kvevict_context* const context = spec.context = test_device_context();
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 60);
  static float scores[2 * kHeads * 60];
  for (int i = 0; i < 2 * kHeads * 60; ++i) scores[i] = 1.0f;
  test_inputs inputs;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_give_scores(&options, &inputs, 2, scores, kHeads * 60, 60);
  EXPECT_OK(test_model_evict(m, &options, NULL));
  kvevict_list_report lists[kMostLists];
  (void)Ask(m, lists);
  cr_expect(lists[0].mass_kept == 11.0f / 12 &&
            lists[0].largest_mass_evicted == 1.0f / 12);
  cr_expect(lists[kHeads].mass_kept == 0.5f &&
            lists[kHeads].largest_mass_evicted == 1.0f / 60);
  test_model_destroy(m);
  kvevict_context_destroy(context);
}

Test(report_mass, options_are_checked) {
  test_model* m = Model("snapkv:budget=60,window=8", 0);
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  kvevict_plan* plan = NULL;
  options.report_mass = 2;
  EXPECT_INVALID(kvevict_plan_create(m->context, &m->geometry, m->policy_handle,
                                     &options, &plan),
                 "report_mass 2 is not 0 or 1");
  cr_assert_null(plan);
  test_model_destroy(m);
}
