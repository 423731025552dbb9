#include "tests/capi/support/policies.h"

#include <math.h>

#include "tests/capi/support/expect.h"

kvevict_policy test_policy(const char* text) {
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  EXPECT_OK(kvevict_policy_parse(text, &policy));
  return policy;
}

static double RandomBudget(test_random* random) {
  switch (test_random_below(random, 4)) {
    case 0:
      return 1.0 - test_random_unit(random);
    case 1:
      return test_random_between(random, 2, 100);
    case 2:
      return test_random_between(random, 100, 100000);
    default:
      return 1.0 + exp(20.0 * test_random_unit(random));
  }
}

static kvevict_policy_kind RandomKind(test_random* random) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  while (kvevict_policy_at(n, &info) == KVEVICT_OK) ++n;
  EXPECT_OK(kvevict_policy_at(test_random_below(random, n), &info));
  return info.kind;
}

/* Every field takes its default half the time, so that combinations get
 * through. */
#define MAYBE(field, value) \
  if (test_random_coin(random)) policy.field = (value)

kvevict_policy test_random_policy(test_random* random) {
  for (;;) {
    kvevict_policy policy;
    EXPECT_OK(kvevict_policy_init(&policy, sizeof policy, RandomKind(random)));
    policy.budget = RandomBudget(random);
    MAYBE(n_sink, test_random_below(random, 20));
    MAYBE(n_recent, test_random_below(random, 80));
    MAYBE(obs_window, test_random_between(random, 1, 70));
    MAYBE(keep_window, test_random_below(random, 2));
    MAYBE(pool, (kvevict_pool)test_random_below(random, 3));
    MAYBE(pool_kernel, 2 * test_random_below(random, 20) + 1);
    MAYBE(pool_edge, (kvevict_pool_edge)test_random_below(random, 2));
    MAYBE(window_reduce, (kvevict_reduce)test_random_below(random, 3));
    MAYBE(row_weight, (kvevict_row_weight)test_random_below(random, 2));
    MAYBE(softmax_keys, (kvevict_softmax_keys)test_random_below(random, 2));
    MAYBE(group_reduce, (kvevict_reduce)test_random_below(random, 3));
    MAYBE(shaping_order, (kvevict_shaping_order)test_random_below(random, 4));
    MAYBE(scope, (kvevict_scope)test_random_below(random, 3));
    MAYBE(scope_reduce, (kvevict_reduce)test_random_below(random, 3));
    MAYBE(tie, (kvevict_tie)test_random_below(random, 2));
    MAYBE(layer_split, (kvevict_layer_split)test_random_below(random, 7));
    MAYBE(row_spread, 300.0 * test_random_unit(random));
    MAYBE(cake_tau1, 0.01 + 3.0 * test_random_unit(random));
    MAYBE(cake_tau2, 0.01 + 3.0 * test_random_unit(random));
    MAYBE(lazy_threshold, test_random_unit(random));
    MAYBE(pyramid_alpha, 1.0 - test_random_unit(random));
    MAYBE(pyramid_beta, test_random_between(random, 1, 64));
    MAYBE(seed, test_random_u64(random));
    MAYBE(block, test_random_between(random, 2, 300));
    MAYBE(value_weight, (kvevict_value_weight)test_random_below(random, 3));
    MAYBE(weight_epsilon, test_random_unit(random));
    MAYBE(redundancy, test_random_unit(random));
    MAYBE(similarity, test_random_unit(random));
    MAYBE(secure, test_random_unit(random));
    MAYBE(lag_ranks, test_random_below(random, 2));
    MAYBE(budget_of_partition, test_random_below(random, 2));
    MAYBE(head_split, (kvevict_head_split)test_random_below(random, 4));
    MAYBE(head_floor, test_random_unit(random));
    MAYBE(score_threshold, (double)test_random_normal(random));
    MAYBE(head_normalize, test_random_below(random, 2));
    MAYBE(select_block, test_random_between(random, 1, 40));
    if (test_random_below(random, 6) == 0) {
      policy.chunk = test_random_between(random, 2, 600);
    }
    if (test_random_below(random, 4) == 0) {
      policy.rescue = test_random_below(random, 6);
      policy.anchor = (kvevict_anchor)test_random_below(random, 5);
    }
    if (test_random_below(random, 8) == 0) {
      policy.diverse_mass = test_random_unit(random);
    }
    if (policy.kind == KVEVICT_POLICY_H2O) {
      MAYBE(sum_rows, (kvevict_sum_rows)test_random_below(random, 3));
      MAYBE(sum_pool, test_random_between(random, 1, 30));
      MAYBE(sum_last, test_random_below(random, 65));
      MAYBE(sum_raw_first, test_random_below(random, 2));
    }
    MAYBE(merge, (kvevict_merge)test_random_below(random, 4));
    MAYBE(merge_threshold, test_random_unit(random));
    MAYBE(merge_fraction, 1.0 - test_random_unit(random));
    if (kvevict_policy_validate(&policy) == KVEVICT_OK) return policy;
  }
}

bool test_same_policy(const kvevict_policy* a, const kvevict_policy* b) {
  return memcmp(a, b, sizeof(*a)) == 0; /* the struct has no padding */
}
