#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"
#include "tests/oracle/policy.h"

typedef struct resolve_row {
  const char* policy;
  uint32_t n_context;
  uint32_t budget, n_sink, n_recent, n_selected, n_query_rows;
} resolve_row;

static const resolve_row kRows[] = {
    /* A context within its budget stays, however short. */
    {"snapkv:budget=2048", 36, 36, 4, 32, 0, 32},
    {"snapkv:budget=2048", 20, 20, 4, 16, 0, 32},
    {"snapkv:budget=2048", 1, 1, 1, 0, 0, 32},
    {"streaming-llm:budget=100", 4, 4, 4, 0, 0, 0},
    {"streaming-llm:recent=10", 3, 3, 3, 0, 0, 0},
    {"h2o:budget=64", 20, 20, 0, 20, 0, KVEVICT_QUERY_ROWS_ANY},
    /* So does a context in which a ratio has no room for what must stay. */
    {"snapkv:budget=0.5", 5, 5, 4, 1, 0, 32},
    {"snapkv:budget=0.5", 73, 73, 4, 32, 37, 32},
    {"snapkv:budget=0.5", 74, 37, 4, 32, 1, 32},
    {"snapkv:budget=0.01", 3600, 3600, 4, 32, 3564, 32},
    {"snapkv:budget=0.5,recent=60", 128, 128, 4, 60, 64, 32},
    {"pyramidkv:budget=0.01", 3600, 3600, 4, 32, 3564, 32},
    {"snapkv:budget=0.01,split=lazy", 3600, 36, 4, 32, 0, 32},
    {"streaming-llm:budget=0.01", 400, 400, 4, 396, 0, 0},
    {"streaming-llm:budget=0.01", 500, 5, 4, 1, 0, 0},
    {"h2o:budget=0.5", 63, 63, 0, 32, 31, KVEVICT_QUERY_ROWS_ANY},
    {"h2o:budget=0.5", 64, 32, 0, 32, 0, KVEVICT_QUERY_ROWS_ANY},
    {"custom:budget=0.01,sink=4,recent=6", 999, 999, 4, 6, 989, 0},
    {"custom:budget=0.01,sink=4,recent=6", 1000, 10, 4, 6, 0, 0},
    {"custom:budget=0.4,sink=4,recent=12,select_block=20", 110, 110, 20, 30, 60,
     0},
    {"custom:budget=0.5,sink=4,recent=12,select_block=20", 110, 50, 20, 30, 0,
     0},
    {"non-causal:budget=0.5", 100, 50, 4, 0, 46, KVEVICT_QUERY_ROWS_ALL},
    /* Policy none keeps everything. */
    {"none", 1, 1, 0, 0, 1, 0},
    {"none", 16384, 16384, 0, 0, 16384, 0},
    /* An unset budget is the full context. At most 1 is a ratio, above 1 a count. */
    {"snapkv", 16384, 16384, 4, 32, 16348, 32},
    {"snapkv:budget=1", 16384, 16384, 4, 32, 16348, 32},
    {"snapkv:budget=2048", 16384, 2048, 4, 32, 2012, 32},
    {"snapkv:budget=0.125", 16384, 2048, 4, 32, 2012, 32},
    {"custom:budget=0.3,sink=0", 9, 2, 0, 0, 2, 0},
    {"custom:budget=3.99,sink=0", 100, 3, 0, 0, 3, 0},
    {"custom:budget=1.5,sink=0", 100, 1, 0, 0, 1, 0},
    {"custom:budget=0.001,sink=0", 100, 1, 0, 0, 1, 0},
    {"custom:budget=1e300,sink=0", 100, 100, 0, 0, 100, 0},
    {"custom:budget=1e-300,sink=0", 2147483647, 1, 0, 0, 1, 0},
    {"random:sink=0,budget=101", 100, 100, 0, 0, 100, 0},
    /* snapkv: sink + window < budget, and the rest of the budget is selected. */
    {"snapkv:budget=37", 100, 37, 4, 32, 1, 32},
    {"snapkv:budget=100,recent=64", 200, 100, 4, 64, 32, 32},
    {"snapkv:budget=100,recent=8", 200, 100, 4, 32, 64, 32},
    {"snapkv:budget=100,recent=8,keep_window=no", 200, 100, 4, 8, 88, 32},
    {"pyramidkv:budget=2048", 16384, 2048, 4, 32, 2012, 32},
    /* streaming-llm: its window is what the sinks leave, or gives the budget. */
    {"streaming-llm:budget=2048", 16384, 2048, 4, 2044, 0, 0},
    {"streaming-llm:budget=5", 16384, 5, 4, 1, 0, 0},
    {"streaming-llm:budget=0.5,sink=0", 10, 5, 0, 5, 0, 0},
    {"streaming-llm:recent=508", 16384, 512, 4, 508, 0, 0},
    {"streaming-llm:budget=64,recent=508", 16384, 512, 4, 508, 0, 0},
    {"streaming-llm:recent=508", 100, 100, 4, 96, 0, 0},
};

Test(policy_resolve, token_counts_are_those_of_the_configuration_layer) {
  for (size_t i = 0; i < sizeof kRows / sizeof kRows[0]; ++i) {
    const resolve_row* row = &kRows[i];
    const kvevict_policy* policy = test_policy(row->policy);
    kvevict_resolved_policy r = {.struct_size = sizeof r};
    EXPECT_OK(kvevict_policy_resolve(policy, row->n_context, &r));
    EXPECT(r.budget == row->budget && r.n_sink == row->n_sink &&
               r.n_recent == row->n_recent && r.n_selected == row->n_selected &&
               r.n_query_rows == row->n_query_rows,
           "%s of %u: budget %u sink %u recent %u selected %u query rows %u",
           row->policy, row->n_context, r.budget, r.n_sink, r.n_recent,
           r.n_selected, r.n_query_rows);
  }
}

Test(policy_resolve, bad_arguments_are_errors) {
  const kvevict_policy* policy = test_policy("snapkv:budget=2048");
  kvevict_resolved_policy r;
  GUARD(r);
  r.struct_size = sizeof r;
  const kvevict_resolved_policy before = r;
  EXPECT_INVALID(kvevict_policy_resolve(NULL, 4096, &r), "policy", "NULL");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 4096, NULL), "out", "NULL");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 0, &r), "n_context", "0");
  EXPECT_INVALID(kvevict_policy_resolve(policy, 2147483648u, &r), "n_context",
                 "2147483648", "2147483647");
  kvevict_policy* bad = test_policy_copy(policy);
  EXPECT_OK(kvevict_policy_set_number(bad, "budget", 36));
  EXPECT_INVALID(kvevict_policy_resolve(bad, 4096, &r),
                 "sink 4 + window 32 >= budget 36");
  cr_assert(memcmp(&r, &before, sizeof r) == 0, "out was written");
}

Test(policy_resolve, struct_size_is_checked) {
  const kvevict_policy* policy = test_policy("none");
  GROWN(kvevict_resolved_policy) r = {{.struct_size = sizeof r.value}};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(r,
                                kvevict_policy_resolve(policy, 100, &r.value));
}

Test(policy_resolve, agrees_with_the_oracle) {
  test_random random = test_random_start("policy_resolve oracle");
  for (int i = 0; i < 20000; ++i) {
    const kvevict_policy* handle = test_random_policy(&random);
    const oracle_policy policy = oracle_policy_of(handle);
    const uint32_t n_context =
        1 + test_random_below(&random, 1u << test_random_below(&random, 20));
    kvevict_resolved_policy expected = {.struct_size = sizeof expected};
    kvevict_resolved_policy r = {.struct_size = sizeof r};
    char text[TEST_POLICY_TEXT];
    EXPECT_OK(kvevict_policy_format(handle, text, sizeof text, NULL));
    if (!oracle_resolve(&policy, n_context, &expected)) {
      EXPECT(kvevict_policy_resolve(handle, n_context, &r) ==
                 KVEVICT_ERROR_INVALID_ARGUMENT,
             "%s of %u is no error", text, n_context);
      continue;
    }
    EXPECT_OK(kvevict_policy_resolve(handle, n_context, &r));
    EXPECT(memcmp(&r, &expected, sizeof r) == 0,
           "%s of %u: budget %u sink %u recent %u selected %u", text, n_context,
           r.budget, r.n_sink, r.n_recent, r.n_selected);
    EXPECT(r.budget == r.n_sink + r.n_recent + r.n_selected, "%s: sum", text);
  }
}
