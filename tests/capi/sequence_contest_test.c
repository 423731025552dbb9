/* Rounding and whole lists of layers whose tokens compete. sequence_life_test.c has the
 * rest. */
#include "tests/capi/support/choice.h"
#include "tests/capi/support/expect.h"

enum { kLayers = 3, kRow = TEST_CHOICE_TOKENS };

/* Layer 1 wins by twice as much as layer 2, and layer 0 loses. */
static void GiveScores(test_given* given, uint32_t n_layers, float more,
                       kvevict_evict_options* options, test_random* random) {
  float* scores = given->scores[0][0];
  for (uint32_t i = 0; i < kLayers * TEST_CHOICE_HEADS * kRow; ++i) {
    const uint32_t layer = i / (TEST_CHOICE_HEADS * kRow);
    scores[i] = (float)test_random_unit(random) + more * (layer == 1   ? 2.0f
                                                          : layer == 2 ? 1.0f
                                                                       : 0.0f);
  }
  test_give(given, n_layers, options);
}

TestSuite(contest);

/* A layer competes by rounding=together too, alone. */
Test(contest, budgets_are_rounded_where_they_should_be) {
  static const struct {
    const char* policy;
    uint32_t n_of_layer;
  } kCases[] = {
      {"custom:sink=0,budget=0.29,heads=adaptive,floor=0", 56},
      {"custom:sink=0,budget=0.29,heads=adaptive,floor=0,rounding=together",
       57},
      {"custom:sink=0,budget=0.29,heads=adaptive-blend,floor=0,"
       "rounding=together",
       56},
  };
  test_random random = test_random_start("rounding");
  for (size_t c = 0; c < sizeof kCases / sizeof *kCases; ++c) {
    test_model_spec spec = test_small_model(kCases[c].policy);
    test_model* m = test_model_create(&spec, random);
    test_model_append(m, 99);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    static test_given given;
    GiveScores(&given, 2, 0, &options, &random);
    EXPECT_OK(test_model_evict(m, &options, NULL));
    for (uint32_t l = 0; l < 2; ++l) {
      const uint32_t n =
          test_model_stored_of(m, l, 0) + test_model_stored_of(m, l, 1);
      EXPECT(n == kCases[c].n_of_layer, "%s: layer %u keeps %u",
             kCases[c].policy, l, n);
    }
    test_model_check(m, kCases[c].policy);
    test_model_destroy(m);
  }
}

/* A scope of layers: its one list competes. Whole blocks of a list stay. */
Test(contest, lists_of_layers_and_blocks_compete) {
  static const char* const kPolicies[] = {
      "custom:sink=0,budget=30,split=scores,scope=layer,floor=0",
      "custom:sink=0,budget=32,split=scores,select_block=8,floor=0"};
  test_random random = test_random_start("contest, lists");
  for (int p = 0; p < 2; ++p) {
    for (int trial = 0; trial < 6; ++trial) {
      test_model_spec spec = test_small_model(kPolicies[p]);
      spec.n_layers = kLayers;
      test_model* m = test_model_create(&spec, random);
      test_model_append(m, 96);
      kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
      static test_given given;
      GiveScores(&given, kLayers, 50, &options, &random);
      EXPECT_OK(test_model_evict(m, &options, NULL));
      const uint32_t kept[kLayers] = {test_model_stored(m, 0),
                                      test_model_stored(m, 1),
                                      test_model_stored(m, 2)};
      if (p == 0) {
        EXPECT(kept[0] == 1 && kept[1] == 88 && kept[2] == 1, "%s: %u %u %u",
               kPolicies[p], kept[0], kept[1], kept[2]);
      } else {
        EXPECT(kept[0] + kept[1] + kept[2] <= 96 && kept[1] >= 80 &&
                   (96 - kept[1]) % 8 == 0 && kept[0] >= 1,
               "%s: %u %u %u", kPolicies[p], kept[0], kept[1], kept[2]);
      }
      test_model_check(m, kPolicies[p]);
      test_model_destroy(m);
    }
  }
}
