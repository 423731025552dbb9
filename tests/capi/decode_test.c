/* Prompts and budgets of decoding loops. sequence_life_test.c has random ones. */

#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

enum { kLayers = 3, kMostPositions = 4096, kMostSlots = 160 };

static test_model* Model(const char* policy, uint64_t seed) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = kMostSlots;
  spec.max_positions = kMostPositions;
  return test_model_create(&spec, (test_random){seed});
}

/* An earlier eviction by another rule left layers with pinned prompts of
 * different lengths. Layers of one length are selected together. */
Test(decode, pinned_prompts_that_do_not_fit_are_refused) {
  test_model* m = Model("knorm:sink=0,budget=40,prompt=pinned", 7);
  test_model_step(m, 60);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  EXPECT_INVALID(test_model_evict(m, NULL, NULL),
                 "layer 0: budget 40 < prompt 60");
  EXPECT(test_model_stored(m, 0) == 60, "nothing was changed");
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 35, NULL));
  m->n_seen = 35;
  test_model_step(m, 20);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT(test_model_stored(m, 0) == 40, "the rest of the prompt fits");
  test_model_check(m, "after the refusal");
  test_model_destroy(m);
}

Test(decode, prompts_end_once) {
  test_model* m = Model("tova:budget=24", 8);
  EXPECT_INVALID(kvevict_sequence_end_prompt(NULL), "sequence");
  test_model_step(m, 9);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  EXPECT_INVALID(kvevict_sequence_end_prompt(m->sequence), "at 9 tokens");
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  test_model_destroy(m);
}

Test(decode, what_does_not_go_together_is_refused) {
  EXPECT_NO_POLICY("snapkv:budget=99,heads=adaptive,prompt=beside",
                   "prompt beside");
  EXPECT_NO_POLICY("snapkv:prompt=outside",
                   "inside|beside|pinned|pinned-beside|at-end");
  const oracle_policy p =
      oracle_policy_from("knorm:sink=0,margin=4,every=8,prompt=pinned");
  cr_assert_eq(p.margin, 4);
  cr_assert_eq(p.every, 8);
  cr_assert_eq(p.prompt, ORACLE_PROMPT_PINNED);
}
