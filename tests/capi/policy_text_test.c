#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

static void ExpectText(const kvevict_policy* policy, const char* expected) {
  char text[512];
  size_t length = 0;
  EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, &length));
  cr_assert_str_eq(text, expected);
  cr_assert_eq(length, strlen(expected));
}

Test(policy_text, name_alone_is_the_kinds_default) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    kvevict_policy expected;
    EXPECT_OK(kvevict_policy_init(&expected, sizeof expected, info.kind));
    const kvevict_policy policy = test_policy(info.name);
    cr_assert(test_same_policy(&policy, &expected), "%s", info.name);
    ExpectText(&policy, info.name);
  }
}

Test(policy_text, every_key_sets_its_field) {
  kvevict_policy expected;
  EXPECT_OK(
      kvevict_policy_init(&expected, sizeof expected, KVEVICT_POLICY_SNAPKV));
  expected.budget = 0.25;
  expected.n_sink = 5;
  expected.n_recent = 40;
  expected.obs_window = 16;
  expected.keep_window = 0;
  expected.pool = KVEVICT_POOL_MAX;
  expected.pool_kernel = 9;
  expected.pool_edge = KVEVICT_POOL_EDGE_SHRINK;
  expected.window_reduce = KVEVICT_REDUCE_SUM;
  expected.group_reduce = KVEVICT_REDUCE_MAX;
  expected.shaping_order = KVEVICT_SHAPING_POOL_THEN_REDUCE;
  expected.scope = KVEVICT_SCOPE_LAYER;
  expected.scope_reduce = KVEVICT_REDUCE_SUM;
  expected.tie = KVEVICT_TIE_HIGHER_POSITION;
  expected.layer_split = KVEVICT_LAYER_SPLIT_ARITHMETIC_KVF;
  expected.pyramid_alpha = 0.5;
  expected.pyramid_beta = 12;
  expected.seed = UINT64_MAX;
  const kvevict_policy policy = test_policy(
      "snapkv:budget=0.25,sink=5,recent=40,window=16,keep_window=no,pool=max9,"
      "edge=shrink,rows=sum,group=max,order=pool-reduce,scope=layer,over=sum,"
      "tie=higher,split=arithmetic-kvf,alpha=0.5,beta=12,"
      "seed=18446744073709551615");
  cr_assert(test_same_policy(&policy, &expected));
}

Test(policy_text, every_word_has_its_value) {
#define EXPECT_WORD(word, field, value) \
  cr_expect_eq(test_policy("random:" word).field, value, "%s", word)
  EXPECT_WORD("pool=none", pool, KVEVICT_POOL_NONE);
  EXPECT_WORD("pool=avg3", pool, KVEVICT_POOL_AVG);
  EXPECT_WORD("pool=max3", pool, KVEVICT_POOL_MAX);
  EXPECT_WORD("pool=max3", pool_kernel, 3);
  EXPECT_WORD("keep_window=yes", keep_window, 1);
  EXPECT_WORD("keep_window=no", keep_window, 0);
  EXPECT_WORD("edge=pad", pool_edge, KVEVICT_POOL_EDGE_PAD);
  EXPECT_WORD("edge=shrink", pool_edge, KVEVICT_POOL_EDGE_SHRINK);
  EXPECT_WORD("rows=mean", window_reduce, KVEVICT_REDUCE_MEAN);
  EXPECT_WORD("rows=sum", window_reduce, KVEVICT_REDUCE_SUM);
  EXPECT_WORD("group=mean", group_reduce, KVEVICT_REDUCE_MEAN);
  EXPECT_WORD("group=max", group_reduce, KVEVICT_REDUCE_MAX);
  EXPECT_WORD("group=sum", group_reduce, KVEVICT_REDUCE_SUM);
  EXPECT_WORD("order=reduce-pool", shaping_order,
              KVEVICT_SHAPING_REDUCE_THEN_POOL);
  EXPECT_WORD("order=pool-reduce", shaping_order,
              KVEVICT_SHAPING_POOL_THEN_REDUCE);
  EXPECT_WORD("scope=head", scope, KVEVICT_SCOPE_KV_HEAD);
  EXPECT_WORD("scope=layer", scope, KVEVICT_SCOPE_LAYER);
  EXPECT_WORD("scope=model", scope, KVEVICT_SCOPE_MODEL);
  EXPECT_WORD("over=mean", scope_reduce, KVEVICT_REDUCE_MEAN);
  EXPECT_WORD("over=max", scope_reduce, KVEVICT_REDUCE_MAX);
  EXPECT_WORD("over=sum", scope_reduce, KVEVICT_REDUCE_SUM);
  EXPECT_WORD("tie=lower", tie, KVEVICT_TIE_LOWER_POSITION);
  EXPECT_WORD("tie=higher", tie, KVEVICT_TIE_HIGHER_POSITION);
  EXPECT_WORD("split=uniform", layer_split, KVEVICT_LAYER_SPLIT_UNIFORM);
  EXPECT_WORD("split=geometric", layer_split, KVEVICT_LAYER_SPLIT_GEOMETRIC);
  EXPECT_WORD("split=arithmetic-kvf", layer_split,
              KVEVICT_LAYER_SPLIT_ARITHMETIC_KVF);
  EXPECT_WORD("split=arithmetic-kvpress", layer_split,
              KVEVICT_LAYER_SPLIT_ARITHMETIC_KVPRESS);
#undef EXPECT_WORD
}

Test(policy_text, spaces_around_tokens_are_ignored) {
  const kvevict_policy tight =
      test_policy("snapkv:budget=2048,sink=4,window=32,pool=avg7");
  const kvevict_policy loose = test_policy(
      "  snapkv :  budget = 2048 , sink= 4,window =32 ,pool=avg7  ");
  cr_assert(test_same_policy(&tight, &loose));
}

Test(policy_text, format_writes_what_differs_from_the_default) {
  kvevict_policy p =
      test_policy("snapkv:budget=2048,sink=4,window=32,pool=avg7");
  ExpectText(&p, "snapkv:budget=2048");
  p = test_policy("pyramidkv:budget=0.5,split=geometric,alpha=0.25");
  ExpectText(&p, "pyramidkv:budget=0.5,alpha=0.25");
  p = test_policy("pyramidkv:budget=1024,split=uniform");
  ExpectText(&p, "pyramidkv:budget=1024,split=uniform");
  p = test_policy("snapkv:budget=512,pool=max5");
  ExpectText(&p, "snapkv:budget=512,pool=max5");
}

/* Text and the column of the mistake (from 1), and a word the message has. */
typedef struct typo {
  char name[32];
  const char* text;
  int column; /* 0: the mistake is in the combination, which has no column */
  const char* word;
} typo;

static const typo kTypos[] = {
    {"empty", "", 1, "policy"},
    {"blank", "   ", 0, "policy"},
    {"unknown name", "snapkw:budget=2048", 1, "snapkv, pyramidkv"},
    {"upper case", "SnapKV", 1, "SnapKV"},
    {"leading spaces", "  snapkw", 3, "snapkv-kvpress"},
    {"no pair", "snapkv:", 8, "key"},
    {"no name", ":budget=1", 1, "policy"},
    {"unknown key", "snapkv:budge=2048", 8, "budge"},
    {"second key", "snapkv:budget=2048,sinks=4", 20, "sinks"},
    {"spaced key", "snapkv:budget=2048, sinks=4", 21, "sinks"},
    {"empty pair", "snapkv:budget=2048,,sink=4", 20, "key"},
    {"trailing comma", "snapkv:budget=2048,", 20, "key"},
    {"no value", "snapkv:budget", 8, "value"},
    {"empty value", "snapkv:budget=", 15, "number"},
    {"no comma", "snapkv:budget=2048 sink=4", 15, "number"},
    {"semicolon", "snapkv:budget=2048;sink=4", 15, "number"},
    {"no number", "snapkv:budget=lots", 15, "number"},
    {"trailing letter", "snapkv:budget=2048k", 15, "number"},
    {"huge number", "snapkv:budget=1e999", 15, "number"},
    {"word for count", "snapkv:budget=2048,sink=four", 25, "count"},
    {"negative count", "snapkv:budget=2048,sink=-4", 25, "count"},
    {"fractional count", "snapkv:budget=2048,sink=4.5", 25, "count"},
    {"big count", "snapkv:budget=2048,sink=4294967296", 25, "count"},
    {"big seed", "random:seed=18446744073709551616", 13, "number"},
    {"pool without width", "snapkv:pool=avg", 13, "avgN"},
    {"negative width", "snapkv:pool=avg-7", 13, "avgN"},
    {"unknown pool", "snapkv:pool=median5", 13, "maxN"},
    {"unknown word", "snapkv:tie=highest", 12, "higher"},
    {"prefix of a word", "snapkv:scope=lay", 14, "layer"},
    {"two words", "snapkv:scope=head|layer", 14, "layer"},
    {"empty word", "snapkv:scope=,sink=4", 14, "layer"},
    {"yes or no", "snapkv:keep_window=1", 20, "yes"},
    {"even pool", "snapkv:budget=2048,pool=avg8", 0, "pool"},
    {"zero budget", "snapkv:budget=0", 0, "budget"},
    {"nan budget", "snapkv:budget=nan", 0, "budget"},
    {"infinite budget", "snapkv:budget=inf", 0, "budget"},
    {"small budget", "snapkv:budget=36", 0, "36"},
    {"rows by max", "snapkv:rows=max", 0, "max"},
};

Test(policy_text, typos_are_named_with_their_column) {
  for (size_t i = 0; i < sizeof kTypos / sizeof kTypos[0]; ++i) {
    kvevict_policy policy = KVEVICT_POLICY_INIT;
    policy.seed = 77;
    const kvevict_policy before = policy;
    char column[32] = "";
    if (kTypos[i].column != 0) {
      snprintf(column, sizeof column, "column %d:", kTypos[i].column);
    }
    EXPECT_INVALID(kvevict_policy_parse(kTypos[i].text, &policy),
                   kTypos[i].word, column);
    cr_assert(test_same_policy(&policy, &before), "%s: out was written",
              kTypos[i].name);
  }
}

/* Texts that can be read, but whose numbers do not go together. */
Test(policy_text, messages_use_the_words_of_the_text) {
  static const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"snapkv:budget=0", "budget 0 is not a finite number > 0"},
      {"snapkv:sink=4294967295", "sink 4294967295 > 2147483647"},
      {"snapkv:recent=4294967295", "recent 4294967295 > 2147483647"},
      {"snapkv:window=0", "window 0 is not in [1, 2147483647]"},
      {"snapkv:pool=avg8", "pool width 8 is not an odd number in [1, 1023]"},
      {"snapkv:rows=max", "rows max is not mean or sum"},
      {"pyramidkv:alpha=2", "alpha 2 is not in (0, 1]"},
      {"pyramidkv:beta=0", "beta 0 < 1"},
      {"snapkv:budget=36", "sink 4 + window 32 >= budget 36"},
      {"snapkv:budget=64,recent=60", "sink 4 + recent 60 >= budget 64"},
      {"streaming-llm:budget=4", "sink 4 >= budget 4"},
      {"random:budget=6,sink=4,recent=3", "sink 4 + recent 3 > budget 6"},
      {"pyramidkv:scope=model",
       "split geometric with scope model: one keep list needs the same budget "
       "in every layer"},
  };
  for (size_t i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    char expected[160];
    snprintf(expected, sizeof expected, "policy text: %s", kCases[i].message);
    kvevict_policy policy = KVEVICT_POLICY_INIT;
    EXPECT_INVALID(kvevict_policy_parse(kCases[i].text, &policy), expected);
  }
}

Test(policy_text, parse_refuses_null_and_wrong_struct_sizes) {
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  EXPECT_INVALID(kvevict_policy_parse(NULL, &policy), "text", "NULL");
  EXPECT_INVALID(kvevict_policy_parse("none", NULL), "out", "NULL");
  GROWN(kvevict_policy) grown = {KVEVICT_POLICY_INIT};
  EXPECT_CHECKS_OUT_STRUCT_SIZE(grown,
                                kvevict_policy_parse("snapkv", &grown.value));
}

Test(policy_text, format_answers_size_queries) {
  const kvevict_policy policy = test_policy("snapkv:budget=2048");
  size_t length = 0;
  EXPECT_OK(kvevict_policy_format(&policy, NULL, 0, &length));
  cr_assert_eq(length, strlen("snapkv:budget=2048"));
  EXPECT_OK(kvevict_policy_format(&policy, NULL, 0, NULL));
}

Test(policy_text, format_fits_exactly_or_leaves_the_buffer_alone) {
  const kvevict_policy policy = test_policy("snapkv:budget=2048");
  const size_t length = strlen("snapkv:budget=2048");
  for (size_t capacity = 1; capacity <= length; ++capacity) {
    char text[64];
    size_t out = 12345;
    GUARD(text);
    EXPECT_INVALID(kvevict_policy_format(&policy, text, capacity, &out),
                   "text_capacity");
    EXPECT_UNTOUCHED(text);
    EXPECT(out == 12345, "out_text_len was written on error");
  }
  char text[64];
  GUARD(text);
  EXPECT_OK(kvevict_policy_format(&policy, text, length + 1, NULL));
  cr_assert_str_eq(text, "snapkv:budget=2048");
  cr_assert(test_is_filled(text + length + 1, sizeof text - length - 1));
}

Test(policy_text, format_refuses_null_and_invalid_policies) {
  char text[64];
  GUARD(text);
  size_t length = 99;
  EXPECT_INVALID(kvevict_policy_format(NULL, text, sizeof text, &length),
                 "policy", "NULL");
  kvevict_policy policy = test_policy("snapkv:budget=2048");
  EXPECT_INVALID(kvevict_policy_format(&policy, NULL, 64, &length), "text",
                 "NULL");
  policy.pool_kernel = 4;
  EXPECT_INVALID(kvevict_policy_format(&policy, text, sizeof text, &length),
                 "pool width");
  EXPECT_UNTOUCHED(text);
  cr_assert_eq(length, 99);
  GROWN(kvevict_policy) grown = {KVEVICT_POLICY_INIT};
  EXPECT_CHECKS_STRUCT_SIZE(
      grown, kvevict_policy_format(&grown.value, NULL, 0, &length));
}

Test(policy_text, parsing_what_was_printed_gives_the_same_policy) {
  test_random random = test_random_start("policy_text round trip");
  for (int i = 0; i < 20000; ++i) {
    const kvevict_policy policy = test_random_policy(&random);
    char text[512];
    EXPECT_OK(kvevict_policy_format(&policy, text, sizeof text, NULL));
    kvevict_policy again = KVEVICT_POLICY_INIT;
    EXPECT_OK(kvevict_policy_parse(text, &again));
    EXPECT(test_same_policy(&policy, &again), "round %d: %s", i, text);
  }
}

/* Whatever stands in the text, the answer is a policy or an error. */
Test(policy_text, damaged_texts_are_errors_or_policies) {
  test_random random = test_random_start("policy_text damage");
  for (int i = 0; i < 20000; ++i) {
    const kvevict_policy policy = test_random_policy(&random);
    char text[512];
    size_t length = 0;
    EXPECT_OK(kvevict_policy_format(&policy, text, sizeof text, &length));
    for (uint32_t n = test_random_between(&random, 1, 3); n > 0; --n) {
      static const char kBytes[] = ":=,|. -+019eaxn\x7f\xff";
      const uint32_t at = test_random_below(&random, (uint32_t)length + 1);
      text[at] = kBytes[test_random_below(&random, sizeof kBytes)];
      text[length] = '\0';
    }
    kvevict_policy again = KVEVICT_POLICY_INIT;
    const kvevict_policy before = again;
    if (kvevict_policy_parse(text, &again) == KVEVICT_OK) {
      EXPECT_OK(kvevict_policy_validate(&again));
    } else {
      EXPECT(test_same_policy(&again, &before), "%s: out was written", text);
    }
  }
}
