/* Blocks that are rescued or differ: anchors that are drawn, and what is refused.
 * sequence_life_test.c has random lives. */
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

/* 90 tokens after an eviction to blocks of 8. */
static test_model* Evicted(const char* keys) {
  char text[120];
  snprintf(text, sizeof text, "knorm:budget=40,scope=layer,select_block=8%s",
           keys);
  test_model* m = test_model_of(text, 1);
  test_model_step(m, 90);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  return m;
}

static bool AreSame(const test_model* a, const test_model* b, uint32_t l) {
  int32_t x[100], y[100];
  const uint32_t n = test_model_stored(a, l);
  test_model_positions(a, l, 0, x);
  test_model_positions(b, l, 0, y);
  return n == test_model_stored(b, l) && memcmp(x, y, n * sizeof *x) == 0;
}

/* The seed alone decides which blocks are rescued. */
Test(blocks, anchors_may_be_drawn) {
  bool differ = false;
  for (uint32_t seed = 1; seed < 20; ++seed) {
    char keys[60];
    snprintf(keys, sizeof keys, ",rescue=2,anchor=random,seed=%u", seed);
    test_model *m = Evicted(keys), *again = Evicted(keys);
    test_model* other = Evicted(",rescue=2,anchor=random,seed=99");
    test_model* plain = Evicted("");
    for (uint32_t l = 0; l < 2; ++l) {
      cr_expect_eq(test_model_stored(m, l), test_model_stored(plain, l) + 16);
      cr_expect(AreSame(m, again, l));
      differ = differ || !AreSame(m, other, l);
    }
    test_model_destroy(m);
    test_model_destroy(again);
    test_model_destroy(other);
    test_model_destroy(plain);
  }
  cr_assert(differ);
}

Test(blocks, need_blocks_and_sums_of_one_layer_to_be_rescued) {
  kvevict_policy* policy = test_policy("knorm:budget=40");
  EXPECT_OK(kvevict_policy_set_number(policy, "rescue", 2));
  EXPECT_INVALID(kvevict_policy_validate(policy), "rescue 2", "select_block");
  EXPECT_OK(kvevict_policy_set_number(policy, "select_block", 8));
  EXPECT_OK(kvevict_policy_validate(policy));
  EXPECT_NO_POLICY(
      "h2o:budget=40,select_block=8,rescue=1,rows=mean,scope=model", "rescue 1",
      "rows mean and scope model");
}

/* Scores that were divided cannot give the sums back. */
Test(blocks, are_rescued_by_one_row_of_sums) {
  test_model* m = test_model_of(
      "h2o:budget=40,recent=4,select_block=8,scope=layer,rows=mean,rescue=1",
      1);
  test_attention* const attention = malloc(sizeof *attention);
  test_random random = {1};
  test_attention_draw(attention, 2, 80, &random);
  for (uint32_t l = 0; l < 2; ++l) {
    EXPECT_OK(test_attention_observe(m->sequence, l, attention, 80, 0));
  }
  test_model_append(m, 80);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0", "rescue 1",
                 "one row", "not in 2");
  free(attention);
  test_model_destroy(m);
}

Test(blocks, that_differ_need_keys_and_exclude_ranges) {
  const char* const kText = "custom:budget=40,select_block=4,diverse_mass=0.5";
  test_model_spec spec = test_small_model(kText);
  test_model* m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 90);
  static float scores[4 * 90];
  test_inputs inputs;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0", "scores");
  test_give_scores(&options, &inputs, 2, scores, 180, 90);
  const kvevict_token_range range = {sizeof range, 1, 0, 9};
  options.ranges = &range;
  options.ranges_len = 1;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "ranges",
                 "diverse_mass 0.5");
  options.ranges_len = 0;
  options.ranges = NULL;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  test_model_destroy(m);
  /* These rows can be moved but not read. */
  spec.k_dtype = KVEVICT_DTYPE_OPAQUE;
  m = test_model_create(&spec, (test_random){1});
  test_model_append(m, 90);
  EXPECT_FAILS(test_model_evict(m, &options, NULL), KVEVICT_ERROR_UNSUPPORTED,
               "layer 0", "cannot score: k_dtype is opaque");
  test_model_destroy(m);
}
