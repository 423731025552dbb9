/* What kvevict_policy_need() says of policies that do not score, of merging and of
 * reference queries. score_errors_test.c compares the others with kvevict_score(). */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(policy_need, place_wants_nothing) {
  static const char* const kTexts[] = {"none", "streaming-llm:budget=10"};
  for (int t = 0; t < 2; ++t) {
    const kvevict_policy* policy = test_policy(kTexts[t]);
    for (kvevict_input i = KVEVICT_INPUT_KEYS; i <= KVEVICT_INPUT_POSITIONS;
         ++i) {
      kvevict_need need = -1;
      EXPECT_OK(kvevict_policy_need(policy, i, &need));
      cr_expect_eq(need, KVEVICT_NEED_NONE, "%s: %d", kTexts[t], i);
    }
  }
}

Test(policy_need, merging_wants_rows_of_any_policy) {
  static const struct {
    const char* text;
    kvevict_need keys, values;
  } kRows[] = {
      {"none", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE},
      {"streaming-llm:merge=values", KVEVICT_NEED_REQUIRED,
       KVEVICT_NEED_REQUIRED},
      {"streaming-llm:merge=pivot", KVEVICT_NEED_REQUIRED,
       KVEVICT_NEED_OPTIONAL},
      {"h2o:merge=weighted", KVEVICT_NEED_REQUIRED, KVEVICT_NEED_OPTIONAL},
      {"cur:merge=pivot", KVEVICT_NEED_REQUIRED, KVEVICT_NEED_REQUIRED},
      {"custom:sink=0,merge=none", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    const kvevict_policy* policy = test_policy(kRows[i].text);
    kvevict_need keys = -1, values = -1;
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_KEYS, &keys));
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_VALUES, &values));
    cr_expect_eq(keys, kRows[i].keys, "%s", kRows[i].text);
    cr_expect_eq(values, kRows[i].values, "%s", kRows[i].text);
  }
}

Test(policy_need, of_reference_queries_and_positions) {
  static const struct {
    const char* text;
    kvevict_input input;
    kvevict_need need;
    uint32_t n_query_rows;
  } kRows[] = {
      {"snapkv:window=4", KVEVICT_INPUT_REFERENCE_QUERIES, KVEVICT_NEED_NONE,
       4},
      {"snapkv:window=4,reference=3", KVEVICT_INPUT_QUERIES, KVEVICT_NEED_NONE,
       0},
      {"snapkv:window=4,reference=3", KVEVICT_INPUT_REFERENCE_QUERIES,
       KVEVICT_NEED_REQUIRED, 0},
      {"snapkv:window=4,reference=3,reference_weight=0.5",
       KVEVICT_INPUT_QUERIES, KVEVICT_NEED_REQUIRED, 4},
      {"knorm", KVEVICT_INPUT_REFERENCE_QUERIES, KVEVICT_NEED_NONE, 0},
      {"custom:leverage=1", KVEVICT_INPUT_KEYS, KVEVICT_NEED_REQUIRED, 0},
      {"custom:leverage=1", KVEVICT_INPUT_POSITIONS, KVEVICT_NEED_OPTIONAL, 0},
      {"leverage", KVEVICT_INPUT_POSITIONS, KVEVICT_NEED_OPTIONAL, 0}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    kvevict_need need = -1;
    kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
    const kvevict_policy* policy = test_policy(kRows[i].text);
    EXPECT_OK(kvevict_policy_need(policy, kRows[i].input, &need));
    EXPECT_OK(kvevict_policy_resolve(policy, 100, &resolved));
    EXPECT(
        need == kRows[i].need && resolved.n_query_rows == kRows[i].n_query_rows,
        "%s: input %d: %d, %u rows", kRows[i].text, kRows[i].input, need,
        resolved.n_query_rows);
  }
}

Test(policy_need, bad_arguments_are_errors) {
  const kvevict_policy* policy = test_policy("snapkv:budget=100");
  kvevict_policy* wrong = test_policy_copy(policy);
  EXPECT_OK(kvevict_policy_set_number(wrong, "budget", 36));
  kvevict_need need = KVEVICT_NEED_OPTIONAL;
  EXPECT_INVALID(kvevict_policy_need(NULL, KVEVICT_INPUT_KEYS, &need),
                 "policy is NULL");
  EXPECT_INVALID(kvevict_policy_need(wrong, KVEVICT_INPUT_KEYS, &need),
                 "sink 4 + window 32 >= budget 36");
  EXPECT_INVALID(kvevict_policy_need(policy, -1, &need), "input -1");
  EXPECT_INVALID(
      kvevict_policy_need(policy, KVEVICT_INPUT_POSITIONS + 1, &need),
      "input 13");
  EXPECT_INVALID(kvevict_policy_need(policy, KVEVICT_INPUT_KEYS, NULL),
                 "out_need is NULL");
  cr_expect_eq(need, KVEVICT_NEED_OPTIONAL);
}
