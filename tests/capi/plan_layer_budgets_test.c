/* Plans with a budget for each layer: what they tell and refuse. Lives have such plans. */
#include <math.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

enum { kLayers = 3, kSlots = 160 };

static test_model* Model(void) {
  test_model_spec spec = test_small_model("none");
  spec.n_layers = kLayers;
  spec.max_tokens = kSlots;
  spec.max_positions = 1000;
  return test_model_create(&spec, (test_random){31});
}

static kvevict_plan_options Budgets(const double* budgets) {
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.layer_budgets = budgets;
  options.layer_budgets_len = kLayers;
  return options;
}

Test(plan_layer_budgets, the_plan_tells_them) {
  test_model* m = Model();
  const double budgets[kLayers] = {0.5, 40, 1e9};
  kvevict_plan_options options = Budgets(budgets);
  EXPECT_OK(test_model_go_on(m, "knorm:budget=7,sink=0", NULL, &options));
  for (uint32_t n = 1; n <= 2 * kSlots; ++n) {
    const uint32_t seen = n < kSlots ? n : kSlots;
    const uint32_t expected[kLayers] = {seen / 2 > 0 ? seen / 2 : 1,
                                        seen < 40 ? seen : 40, seen};
    uint32_t told[kLayers];
    EXPECT_OK(kvevict_plan_layer_budgets(m->plan, n, told, kLayers));
    for (int l = 0; l < kLayers; ++l) {
      EXPECT(told[l] == expected[l], "%u tokens, layer %d: %u, not %u", n, l,
             told[l], expected[l]);
    }
  }
  test_model_destroy(m);
}

/* Whole blocks have been evicted: the last block is as full as that of the tokens
 * seen. */
Test(plan_layer_budgets, whole_blocks_are_those_of_the_tokens_seen) {
  test_model_spec spec =
      test_small_model("knorm:budget=47,sink=0,select_block=8");
  spec.n_layers = kLayers;
  spec.max_tokens = kSlots;
  test_model* m = test_model_create(&spec, (test_random){31});
  static const uint32_t kCases[][2] = {{40, 40},   {47, 47},   {48, 40},
                                       {50, 42},   {160, 40},  {161, 41},
                                       {1003, 43}, {1007, 47}, {INT32_MAX, 47}};
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    uint32_t budgets[kLayers];
    EXPECT_OK(
        kvevict_plan_layer_budgets(m->plan, kCases[i][0], budgets, kLayers));
    for (uint32_t l = 0; l < kLayers; ++l) {
      EXPECT(budgets[l] == kCases[i][1], "of %u tokens %u, not %u",
             kCases[i][0], budgets[l], kCases[i][1]);
    }
  }
  test_model_destroy(m);
}

Test(plan_layer_budgets, other_layers_have_none) {
  test_model* m = Model();
  kvevict_layer_geometry layers[kLayers] = {m->layer, m->layer, m->layer};
  layers[1].cache = KVEVICT_LAYER_CACHE_WINDOW;
  kvevict_geometry geometry = m->geometry;
  geometry.layers = layers;
  geometry.layers_len = kLayers;
  const double budgets[] = {20, 30};
  kvevict_plan_options options = Budgets(budgets);
  const kvevict_policy* policy = test_policy("knorm:sink=25,recent=2");
  kvevict_plan* plan = NULL;
  EXPECT_INVALID(
      kvevict_plan_create(m->context, &geometry, policy, &options, &plan),
      "layer_budgets_len 3 is not 2");
  options.layer_budgets_len = 2;
  EXPECT_INVALID(
      kvevict_plan_create(m->context, &geometry, policy, &options, &plan),
      "layer_budgets[0]: ", "sink 25 + recent 2 > budget 20");
  const kvevict_policy* fits = test_policy("knorm:sink=2");
  EXPECT_OK(kvevict_plan_create(m->context, &geometry, fits, &options, &plan));
  uint32_t told[kLayers];
  EXPECT_OK(kvevict_plan_layer_budgets(plan, 100, told, kLayers));
  cr_expect(told[0] == 20 && told[1] == 0 && told[2] == 30);
  kvevict_plan_destroy(plan);
  test_model_destroy(m);
}

/* A layer waits while what must stay has no room. The others do not. */
Test(plan_layer_budgets, layers_work_when_they_have_room) {
  test_model* m = Model();
  const double budgets[kLayers] = {0.1, 20, 0.5};
  const kvevict_plan_options options = Budgets(budgets);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  EXPECT_OK(test_model_go_on(m, "streaming-llm:sink=4,prompt=beside", NULL,
                             &options));
  for (uint32_t n = 1; n <= 100; ++n) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    const uint32_t expected[kLayers] = {n / 10 > 4 ? n / 10 : n,
                                        n < 20 ? n : 20, n / 2 > 4 ? n / 2 : n};
    for (uint32_t l = 0; l < kLayers; ++l) {
      EXPECT(test_model_stored(m, l) == expected[l],
             "%u tokens: layer %u holds %u, not %u", n, l,
             test_model_stored(m, l), expected[l]);
    }
  }
  test_model_destroy(m);
}

/* These policies have one list for all layers or split by their own rule. */
Test(plan_layer_budgets, what_does_not_go_together_is_refused) {
  test_model* m = Model();
  const double budgets[kLayers] = {20, 30, 40}, equal[kLayers] = {20, 20, 20};
  double bad[kLayers] = {20, 30, 40};
  uint32_t heads[2 * kLayers] = {9, 9, 9, 9, 9, 9};
  kvevict_plan_options options = Budgets(budgets);
  kvevict_plan* plan = NULL;
  kvevict_policy* policy = test_policy("knorm:scope=model");
#define CREATE() \
  kvevict_plan_create(m->context, &m->geometry, policy, &options, &plan)
  EXPECT_INVALID(CREATE(), "scope model");
  options.layer_budgets = equal;
  EXPECT_OK(CREATE());
  kvevict_plan_destroy(plan);
  options.layer_budgets = bad;
  policy = test_policy("cake:window=4");
  EXPECT_INVALID(CREATE(), "combined with split cake");
  policy = test_policy("knorm:budget=9");
  static const double kBad[] = {0, -1, (double)NAN, (double)INFINITY};
  for (int i = 0; i < 4; ++i) {
    bad[1] = kBad[i];
    EXPECT_INVALID(CREATE(), "layer_budgets[1]: budget ",
                   " is not a finite number > 0");
  }
  bad[1] = 30;
  options.layer_budgets_len = 2;
  EXPECT_INVALID(CREATE(), "layer_budgets_len 2 is not 3");
  options.layer_budgets = NULL;
  EXPECT_INVALID(CREATE(), "layer_budgets is NULL, but layer_budgets_len is 2");
  options = Budgets(budgets);
  options.head_budgets = heads;
  options.head_budgets_len = 2 * kLayers;
  EXPECT_INVALID(CREATE(), "combined with head_budgets");
#undef CREATE
  test_model_destroy(m);
}
