#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

static void ExpectText(const kvevict_policy* policy, const char* expected) {
  char text[TEST_POLICY_TEXT];
  size_t length = 0;
  EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, &length));
  cr_assert_str_eq(text, expected);
  cr_assert_eq(length, strlen(expected));
}

Test(policy_text, of_a_key_given_twice_the_last_value_counts) {
  ExpectText(test_policy("snapkv:budget=99,seed=4,budget=100,seed=0"),
             "snapkv:budget=100");
  ExpectText(test_policy("snapkv:recent=0.5,window=8,recent=7"),
             "snapkv:recent=7,window=8");
}

Test(policy_text, ends_may_be_shares_of_the_budget) {
  const kvevict_policy* p =
      test_policy("snapkv:budget=1024,sink=0.01,recent=0.5,window=0.25");
  ExpectText(p, "snapkv:budget=1024,sink=0.01,recent=0.5,window=0.25");
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  for (uint32_t n = 2000; n <= 8000; n *= 2) {
    EXPECT_OK(kvevict_policy_resolve(p, n, &r));
    cr_expect(r.budget == 1024 && r.n_sink == 10 && r.n_recent == 512 &&
              r.n_query_rows == 256);
  }
  p = test_policy("h2o:budget=0.2,recent=0.5");
  EXPECT_OK(kvevict_policy_resolve(p, 1000, &r));
  cr_expect(r.budget == 200 && r.n_recent == 100 && r.n_selected == 100);
  EXPECT_OK(kvevict_policy_resolve(p, 2000, &r));
  cr_expect(r.budget == 400 && r.n_recent == 200);
}

Test(policy_text, spaces_around_tokens_are_ignored) {
  cr_assert(test_same_policy(
      test_policy("snapkv:budget=2048,sink=4,window=32,pool=avg7"),
      test_policy(
          "  snapkv :  budget = 2048 , sink= 4,window =32 ,pool=avg7  ")));
}

/* A text may say what no plan would accept. */
Test(policy_text, format_writes_values_that_do_not_go_together) {
  kvevict_policy* policy = test_policy("snapkv");
  EXPECT_OK(kvevict_policy_set_number(policy, "budget", 5));
  ExpectText(policy, "snapkv:budget=5");
  cr_expect_neq(kvevict_policy_validate(policy), KVEVICT_OK);
}

static bool KeepsAnEnd(const kvevict_policy* policy) {
  kvevict_resolved_policy of = {.struct_size = sizeof of};
  EXPECT_OK(kvevict_policy_resolve(policy, 8192, &of));
  return of.n_sink + of.n_recent > 0;
}

static void ExpectSaid(const char* what, const kvevict_policy* policy) {
  char text[TEST_POLICY_TEXT];
  EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, NULL));
  cr_expect(strstr(text, "sink=0") != NULL && strstr(text, "recent=0") != NULL,
            "%s: %s", what, text);
  ExpectText(test_policy(text), text);
}

Test(policy_text, every_policy_keeps_an_end_by_itself) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  for (uint32_t i = 1; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    kvevict_policy* policy = test_policy(info.name);
    EXPECT_OK(kvevict_policy_set_number(policy, "budget", 0.5));
    cr_expect(KeepsAnEnd(policy), "%s", info.name);
    EXPECT_OK(kvevict_policy_set_number(policy, "sink", 0));
    EXPECT_OK(kvevict_policy_set_number(policy, "recent", 0));
    /* This may fail for a policy without a window. */
    (void)kvevict_policy_set_number(policy, "keep_window", 0);
    if (!KeepsAnEnd(policy)) ExpectSaid(info.name, policy);
    cr_expect_eq(KeepsAnEnd(policy), strcmp(info.name, "streaming-llm") == 0,
                 "%s", info.name);
  }
}

Test(policy_text, presets_that_keep_neither_end_say_so) {
  kvevict_preset_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  for (uint32_t i = 0; kvevict_preset_at(i, &info) == KVEVICT_OK; ++i) {
    const kvevict_policy* policy = test_policy(info.name);
    if (KeepsAnEnd(policy)) continue;
    ++n;
    cr_expect(strstr(info.policy_text, "sink=0") != NULL, "%s", info.name);
    ExpectSaid(info.name, policy);
  }
  cr_expect_gt(n, 5u);
}

/* A text, the column of its mistake (from 1), and a word of the message. */
typedef struct typo {
  char name[32];
  const char* text;
  int column;
  const char* word;
} typo;

static const typo kTypos[] = {
    {"empty", "", 1, "policy"},
    {"blank", "   ", 4, "policy"},
    {"unknown name", "snapkw:budget=2048", 1, "snapkv, pyramidkv"},
    {"unknown preset", "snapkv-kvpres", 1, "alike: snapkv-kvpress"},
    {"unknown source", "openvino:budget=99", 1, "openvino-genai-sum, "},
    {"upper case", "SnapKV", 1, "SnapKV"},
    {"leading spaces", "  snapkw", 3, "knorm"},
    {"no pair", "snapkv:", 8, "a key is missing"},
    {"no name", ":budget=1", 1, "policy"},
    {"unknown key", "snapkv:budge=2048", 8, "budge"},
    {"second key", "snapkv:budget=2048,sinks=4", 20, "sinks"},
    {"spaced key", "snapkv:budget=2048, sinks=4", 21, "sinks"},
    {"empty pair", "snapkv:budget=2048,,sink=4", 20, "a key is missing"},
    {"trailing comma", "snapkv:budget=2048,", 20, "a key is missing"},
    {"no value", "snapkv:budget", 8, "value"},
    {"empty value", "snapkv:budget=", 15, "number"},
    {"no comma", "snapkv:budget=2048 sink=4", 15, "number"},
    {"word for count", "snapkv:budget=2048,sink=four", 25, "count"},
    {"unknown word", "snapkv:tie=highest", 12, "higher"},
};

Test(policy_text, typos_are_named_with_their_column) {
  for (size_t i = 0; i < sizeof kTypos / sizeof kTypos[0]; ++i) {
    char column[40];
    snprintf(column, sizeof column,
             "policy text, column %d: ", kTypos[i].column);
    EXPECT_NO_POLICY(kTypos[i].text, kTypos[i].word, column);
  }
}

Test(policy_text, format_answers_size_queries) {
  const kvevict_policy* policy = test_policy("snapkv:budget=2048");
  size_t length = 0;
  EXPECT_OK(kvevict_policy_format(policy, NULL, 0, &length));
  cr_assert_eq(length, strlen("snapkv:budget=2048"));
  EXPECT_OK(kvevict_policy_format(policy, NULL, 0, NULL));
}

Test(policy_text, format_fits_exactly_or_leaves_the_buffer_alone) {
  const kvevict_policy* policy = test_policy("snapkv:budget=2048");
  const size_t length = strlen("snapkv:budget=2048");
  for (size_t capacity = 1; capacity <= length; ++capacity) {
    char text[64];
    size_t out = 12345;
    GUARD(text);
    EXPECT_INVALID(kvevict_policy_format(policy, text, capacity, &out),
                   "text_capacity");
    EXPECT_UNTOUCHED(text);
    EXPECT(out == 12345, "out_text_len was written on error");
  }
  char text[64];
  GUARD(text);
  EXPECT_OK(kvevict_policy_format(policy, text, length + 1, NULL));
  cr_assert_str_eq(text, "snapkv:budget=2048");
  cr_assert(test_is_filled(text + length + 1, sizeof text - length - 1));
}

Test(policy_text, format_refuses_null) {
  char text[64];
  GUARD(text);
  size_t length = 99;
  EXPECT_INVALID(kvevict_policy_format(NULL, text, sizeof text, &length),
                 "policy is NULL");
  EXPECT_INVALID(
      kvevict_policy_format(test_policy("snapkv"), NULL, 64, &length),
      "text is NULL");
  EXPECT_UNTOUCHED(text);
  cr_assert_eq(length, 99);
}
