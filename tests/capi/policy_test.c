#include <math.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(policy, struct_has_no_padding) {
  /* test_same_policy() compares bytes. */
  cr_assert_eq(sizeof(kvevict_policy), 38 * 4 + 19 * 8);
}

Test(policy, init_macro_equals_init_function) {
  const kvevict_policy macro = KVEVICT_POLICY_INIT;
  kvevict_policy policy;
  GUARD(policy);
  EXPECT_OK(kvevict_policy_init(&policy, sizeof policy, ORACLE_NONE));
  cr_assert(test_same_policy(&policy, &macro));
}

/* The kinds of the table. */
enum { kMostKinds = 64 };
static uint32_t FindKinds(oracle_kind* kinds) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  for (; kvevict_policy_at(n, &info) == KVEVICT_OK; ++n) kinds[n] = info.kind;
  return n;
}

Test(policy, init_differs_from_the_macro_where_the_header_says) {
  oracle_kind kinds[kMostKinds];
  const uint32_t n = FindKinds(kinds);
  for (uint32_t i = 0; i < n; ++i) {
    const oracle_kind kind = kinds[i];
    kvevict_policy expected = KVEVICT_POLICY_INIT;
    expected.kind = kind;
    switch (kind) {
      case ORACLE_NONE:
      case ORACLE_STREAMING_LLM:
      case ORACLE_SNAPKV:
        break;
      case ORACLE_PYRAMIDKV:
        expected.split = ORACLE_SPLIT_GEOMETRIC;
        break;
      case ORACLE_TOVA:
        expected.n_sink = 0;
        expected.window = 1;
        expected.pool = ORACLE_POOL_NONE;
        expected.scope = KVEVICT_SCOPE_LAYER;
        break;
      case ORACLE_H2O:
        expected.n_sink = 0;
        expected.n_recent = 32;
        expected.pool = ORACLE_POOL_NONE;
        expected.rows = KVEVICT_REDUCE_SUM;
        break;
      case ORACLE_RANDOM:
      case ORACLE_CUSTOM:
      case ORACLE_KNORM:
      case ORACLE_Q_FILTER:
        expected.pool = ORACLE_POOL_NONE;
        break;
      case ORACLE_KEYDIFF:
        expected.pool = ORACLE_POOL_NONE;
        expected.block = 0;
        break;
      case ORACLE_CUR:
        expected.block = 16;
        expected.pool = ORACLE_POOL_NONE;
        break;
      case ORACLE_LAGKV:
        expected.pool = ORACLE_POOL_NONE;
        break;
      case ORACLE_TRIATTENTION:
        expected.pool = ORACLE_POOL_NONE;
        expected.group = KVEVICT_REDUCE_MAX;
        expected.over = KVEVICT_REDUCE_MAX;
        break;
      case ORACLE_NON_CAUSAL:
        expected.pool_width = 3;
        expected.order = ORACLE_ORDER_WEIGH_POOL;
        expected.block = 256;
        expected.weight = ORACLE_WEIGHT_NORM;
        break;
      case ORACLE_EXPECTED_ATTENTION:
        expected.pool = ORACLE_POOL_NONE;
        expected.weight = ORACLE_WEIGHT_NORM;
        break;
      case ORACLE_R_KV:
        expected.n_sink = 0;
        expected.window = 8;
        expected.pool = ORACLE_POOL_MAX;
        expected.group = KVEVICT_REDUCE_MAX;
        expected.order = ORACLE_ORDER_REDUCE_LOGITS;
        expected.softmax = ORACLE_SOFTMAX_PAST;
        expected.redundancy = 0.9;
        break;
      case ORACLE_CAKE:
        expected.n_sink = 0;
        expected.pool_width = 5;
        expected.spread = 200.0;
        expected.split = ORACLE_SPLIT_CAKE;
        break;
      default:
        cr_assert_fail("kind %d: what are its defaults?", (int)kind);
    }
    kvevict_policy policy;
    EXPECT_OK(kvevict_policy_init(&policy, sizeof policy, kind));
    cr_assert(test_same_policy(&policy, &expected), "kind %d", (int)kind);
  }
}

Test(policy, init_refuses_null_small_structs_and_unknown_kinds) {
  kvevict_policy p;
  GUARD(p);
  EXPECT_INVALID(kvevict_policy_init(NULL, sizeof p, ORACLE_NONE),
                 "out", "NULL");
  EXPECT_INVALID(kvevict_policy_init(&p, sizeof p - 1, ORACLE_NONE),
                 "struct_size");
  EXPECT_INVALID(kvevict_policy_init(&p, sizeof p, 999), "kind", "999");
  EXPECT_INVALID(kvevict_policy_init(&p, sizeof p, -1), "kind", "-1");
  EXPECT_UNTOUCHED(p);
}

Test(policy, init_of_a_grown_struct_gives_one_that_is_accepted) {
  GROWN(kvevict_policy) grown;
  GUARD(grown);
  EXPECT_OK(kvevict_policy_init(&grown.value, sizeof grown.bytes,
                                ORACLE_SNAPKV));
  EXPECT_OK(kvevict_policy_validate(&grown.value));
}

Test(policy, validate_accepts_the_defaults_of_every_kind) {
  oracle_kind kinds[kMostKinds];
  const uint32_t n = FindKinds(kinds);
  for (uint32_t i = 0; i < n; ++i) {
    kvevict_policy policy;
    EXPECT_OK(kvevict_policy_init(&policy, sizeof policy, kinds[i]));
    EXPECT_OK(kvevict_policy_validate(&policy));
  }
}

Test(policy, validate_refuses_null_and_wrong_struct_sizes) {
  EXPECT_INVALID(kvevict_policy_validate(NULL), "policy", "NULL");
  GROWN(kvevict_policy) grown = {KVEVICT_POLICY_INIT};
  EXPECT_CHECKS_STRUCT_SIZE(grown, kvevict_policy_validate(&grown.value));
}

/* `change` to a valid SnapKV policy p makes it invalid, and the message says
 * why. */
#define EXPECT_BREAKS(change, ...)                            \
  do {                                                        \
    kvevict_policy p = test_policy("snapkv:budget=2048");     \
    change;                                                   \
    EXPECT_INVALID(kvevict_policy_validate(&p), __VA_ARGS__); \
  } while (0)

Test(policy, budget_must_be_a_positive_finite_number) {
  EXPECT_BREAKS(p.budget = 0.0, "budget", "0");
  EXPECT_BREAKS(p.budget = -0.0, "budget", "0");
  EXPECT_BREAKS(p.budget = -1.0, "budget", "-1");
  EXPECT_BREAKS(p.budget = -0.5, "budget", "-0.5");
  EXPECT_BREAKS(p.budget = (double)NAN, "budget", "nan");
  EXPECT_BREAKS(p.budget = (double)INFINITY, "budget", "inf");
  EXPECT_BREAKS(p.budget = (double)-INFINITY, "budget", "-inf");
}

Test(policy, enumerators_must_exist) {
  EXPECT_BREAKS(p.kind = 999, "kind", "999");
  EXPECT_BREAKS(p.kind = -1, "kind", "-1");
  EXPECT_BREAKS(p.pool = 3, "pool", "3");
  EXPECT_BREAKS(p.edge = 2, "edge", "2");
  EXPECT_BREAKS(p.rows = 3, "rows", "3");
  EXPECT_BREAKS(p.group = 3, "group", "3");
  EXPECT_BREAKS(p.group = -7, "group", "-7");
  EXPECT_BREAKS(p.row_weight = 2, "row_weight 2 is not in [0, 1]");
  EXPECT_BREAKS(p.softmax = 2, "softmax 2 is not in [0, 1]");
  EXPECT_BREAKS(p.order = 4, "order", "4");
  EXPECT_BREAKS(p.scope = 3, "scope", "3");
  EXPECT_BREAKS(p.over = 3, "over", "3");
  EXPECT_BREAKS(p.tie = 2, "tie", "2");
  EXPECT_BREAKS(p.split = 7, "split", "7");
  EXPECT_BREAKS(p.merge = 4, "merge 4 is not in [0, 3]");
  EXPECT_BREAKS(p.merge = -1, "merge -1");
}

/* What counts single tokens does not keep whole blocks. */
Test(policy, whole_blocks_go_with_budgets_of_blocks) {
  static const char* const kTexts[] = {"snapkv:budget=100,heads=adaptive",
                                       "snapkv:budget=100,heads=threshold",
                                       "lagkv:budget=0.5,of=partition"};
  for (int i = 0; i < 3; ++i) {
    kvevict_policy p = test_policy(kTexts[i]);
    p.select_block = 4;
    EXPECT_INVALID(kvevict_policy_validate(&p), "select_block 4 with",
                   "count single tokens");
  }
}

Test(policy, numbers_must_be_in_range) {
  EXPECT_BREAKS(p.pool_width = 0, "pool width", "0", "odd");
  EXPECT_BREAKS(p.pool_width = 4, "pool width", "4", "odd");
  EXPECT_BREAKS(p.pool_width = UINT32_MAX - 1, "pool width", "odd");
  EXPECT_BREAKS(p.keep_window = 2, "keep_window", "2");
  EXPECT_BREAKS(p.window = 0, "window", "0");
  EXPECT_BREAKS(p.alpha = 0.0, "alpha", "0");
  EXPECT_BREAKS(p.alpha = -0.7, "alpha", "-0.7");
  EXPECT_BREAKS(p.alpha = 1.5, "alpha", "1.5");
  EXPECT_BREAKS(p.alpha = (double)NAN, "alpha", "nan");
  EXPECT_BREAKS(p.beta = 0, "beta", "0");
  EXPECT_BREAKS(p.select_block = 0, "select_block 0 is not in [1, 65536]");
  EXPECT_BREAKS(p.select_block = 65537, "select_block 65537");
  EXPECT_BREAKS(p.chunk = 1, "chunk 1 is not 0 or in [2, 2147483647]");
  EXPECT_BREAKS(p.chunk = 0x80000000u, "chunk 2147483648");
  EXPECT_BREAKS(p.merge_threshold = -0.5,
                "merge_threshold -0.5 is not in [0, 1]");
  EXPECT_BREAKS(p.merge_threshold = 1.5, "merge_threshold 1.5");
  EXPECT_BREAKS(p.merge_threshold = (double)NAN, "merge_threshold nan");
  EXPECT_BREAKS(p.merge_fraction = 0.0, "merge_fraction 0 is not in (0, 1]");
  EXPECT_BREAKS(p.merge_fraction = 1.5, "merge_fraction 1.5");
  EXPECT_BREAKS(p.merge_fraction = (double)NAN, "merge_fraction nan");
  EXPECT_BREAKS(p.block = 1, "block 1 is not in [2, 65536]");
  EXPECT_BREAKS(p.block = 65537, "block 65537");
  EXPECT_BREAKS(p.weight = 3, "weight 3 is not in [0, 2]");
  EXPECT_BREAKS(p.epsilon = -1.0, "epsilon -1 is not in [0, 3.4e38]");
  EXPECT_BREAKS(p.epsilon = 1e39, "epsilon 1e+39 is not in [0, 3.4e38]");
  EXPECT_BREAKS(p.redundancy = -0.5, "redundancy -0.5 is not in [0, 1]");
  EXPECT_BREAKS(p.redundancy = 1.5, "redundancy 1.5");
  EXPECT_BREAKS(p.redundancy = (double)NAN, "redundancy nan");
  EXPECT_BREAKS(p.similarity = -0.5, "similarity -0.5 is not in [0, 1]");
  EXPECT_BREAKS(p.similarity = (double)NAN, "similarity nan");
  EXPECT_BREAKS(p.ranks = 2, "ranks 2 is not 0 or 1");
  EXPECT_BREAKS(p.of = 2, "of 2 is not 0 or 1");
  EXPECT_BREAKS(p.heads = 4, "heads 4 is not in [0, 3]");
  EXPECT_BREAKS(p.heads = -1, "heads -1");
  EXPECT_BREAKS(p.floor = -0.1, "floor -0.1 is not in [0, 1]");
  EXPECT_BREAKS(p.floor = 1.5, "floor 1.5");
  EXPECT_BREAKS(p.floor = (double)NAN, "floor nan");
  EXPECT_BREAKS(p.threshold = (double)INFINITY,
                "threshold inf is not in [-3.4e38, 3.4e38]");
  EXPECT_BREAKS(p.threshold = -1e39, "threshold -1e+39");
  EXPECT_BREAKS(p.threshold = (double)NAN, "threshold nan");
  EXPECT_BREAKS(p.n_sink = UINT32_MAX, "sink");
  EXPECT_BREAKS(p.n_recent = UINT32_MAX, "recent");
}

Test(policy, logits_are_reduced_by_maximum_and_sums_by_none) {
  EXPECT_BREAKS(p.order = ORACLE_ORDER_REDUCE_LOGITS,
                "order reduce-logits", "group mean", "max");
  kvevict_policy p = test_policy("snapkv:group=max,order=reduce-logits");
  EXPECT_OK(kvevict_policy_validate(&p));
  p.kind = ORACLE_EXPECTED_ATTENTION;
  EXPECT_INVALID(kvevict_policy_validate(&p), "order reduce-logits",
                 "expected attention", "no logits");
  p = test_policy("snapkv:rows=max");
  EXPECT_OK(kvevict_policy_validate(&p));
  p = test_policy("h2o");
  p.rows = KVEVICT_REDUCE_MAX;
  EXPECT_INVALID(kvevict_policy_validate(&p), "rows max is not mean or sum");
}

Test(policy, messages_show_numbers_apart_from_their_bounds) {
  EXPECT_BREAKS(p.alpha = 1.0000001, "alpha 1.0000001 ");
  EXPECT_BREAKS(p.alpha = 1.0 + 0x1p-52, "alpha 1.0000000000000002 ");
  EXPECT_BREAKS(p.budget = -1e-300, "budget -1e-300 ");
}

Test(policy, alpha_one_and_pool_width_one_are_valid) {
  kvevict_policy p = test_policy("pyramidkv:budget=2048");
  p.alpha = 1.0;
  p.pool_width = 1;
  EXPECT_OK(kvevict_policy_validate(&p));
}

Test(policy, token_budget_must_hold_what_must_stay) {
  EXPECT_BREAKS(p.budget = 36, "4", "32", "36");
  EXPECT_BREAKS(p.budget = 36.9, "4", "32", "36");
  EXPECT_BREAKS(p.n_recent = 2044, "4", "2044", "2048");
  EXPECT_BREAKS((p.kind = ORACLE_PYRAMIDKV, p.budget = 10), "4", "32",
                "10");
  EXPECT_BREAKS((p.kind = ORACLE_STREAMING_LLM, p.budget = 4),
                "sink 4 >= budget 4");
  kvevict_policy p = test_policy("snapkv:budget=2048");
  p.budget = 37;
  EXPECT_OK(kvevict_policy_validate(&p));
  p.keep_window = 0;
  p.budget = 5;
  EXPECT_OK(kvevict_policy_validate(&p));
}

Test(policy, one_list_for_the_model_needs_one_budget) {
  EXPECT_BREAKS((p.scope = KVEVICT_SCOPE_MODEL,
                 p.split = ORACLE_SPLIT_GEOMETRIC),
                "scope", "split");
}

Test(policy, enumeration_names_every_kind) {
  oracle_kind kinds[kMostKinds];
  const uint32_t n = FindKinds(kinds);
  cr_assert_gt(n, ORACLE_CUSTOM);
  for (uint32_t i = 0; i < n; ++i) {
    kvevict_policy_info info = {.struct_size = sizeof info};
    EXPECT_OK(kvevict_policy_at(i, &info));
    cr_expect_eq(info.struct_size, sizeof info);
    for (uint32_t j = 0; j < i; ++j) cr_expect_neq(info.kind, kinds[j]);
    cr_expect_not_null(info.signal);
    cr_expect_not_null(info.shaping);
    cr_expect_not_null(info.budget);
    cr_expect_not_null(info.trigger);
    cr_expect(info.paper[0] == 0 || strncmp(info.paper, "arXiv:", 6) == 0);
    cr_expect_eq(test_policy(info.name).kind, kinds[i]);
  }
}

Test(policy, enumeration_ends_with_an_error_and_untouched_output) {
  kvevict_policy_info info;
  GUARD(info);
  info.struct_size = sizeof info;
  const kvevict_policy_info before = info;
  EXPECT_INVALID(kvevict_policy_at(999, &info), "index", "999");
  EXPECT_INVALID(kvevict_policy_at(UINT32_MAX, &info), "index");
  cr_assert(memcmp(&info, &before, sizeof info) == 0);
  EXPECT_INVALID(kvevict_policy_at(0, NULL), "out", "NULL");
  GROWN(kvevict_policy_info) grown = {{.struct_size = 0}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(grown, kvevict_policy_at(2, &grown.value));
}
