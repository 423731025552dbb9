#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

static void ExpectText(const kvevict_policy* policy, const char* expected) {
  char text[768];
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
      kvevict_policy_init(&expected, sizeof expected, ORACLE_SNAPKV));
  expected.budget = 0.25;
  expected.n_sink = 5;
  expected.n_recent = 40;
  expected.window = 16;
  expected.keep_window = 0;
  expected.pool = ORACLE_POOL_MAX;
  expected.pool_width = 9;
  expected.edge = ORACLE_EDGE_SHRINK;
  expected.rows = KVEVICT_REDUCE_SUM;
  expected.group = KVEVICT_REDUCE_MAX;
  expected.order = ORACLE_ORDER_POOL_REDUCE;
  expected.scope = KVEVICT_SCOPE_LAYER;
  expected.over = KVEVICT_REDUCE_SUM;
  expected.tie = KVEVICT_TIE_HIGHER_POSITION;
  expected.split = ORACLE_SPLIT_ARITHMETIC_KVF;
  expected.alpha = 0.5;
  expected.beta = 12;
  expected.select_block = 16;
  expected.merge = KVEVICT_MERGE_VALUES;
  expected.merge_threshold = 0.5;
  expected.merge_fraction = 0.75;
  const kvevict_policy policy = test_policy(
      "snapkv:budget=0.25,sink=5,recent=40,window=16,keep_window=no,pool=max9,"
      "edge=shrink,rows=sum,group=max,order=pool-reduce,scope=layer,over=sum,"
      "tie=higher,split=arithmetic-kvf,alpha=0.5,beta=12,select_block=16,"
      "merge=values,merge_threshold=0.5,merge_fraction=0.75");
  cr_assert(test_same_policy(&policy, &expected));
  cr_assert_eq(test_policy("random:seed=18446744073709551615").seed,
               UINT64_MAX);
}

Test(policy_text, every_word_has_its_value) {
#define EXPECT_WORD(word, field, value) \
  cr_expect_eq(test_policy("snapkv:" word).field, value, "%s", word)
  EXPECT_WORD("pool=none", pool, ORACLE_POOL_NONE);
  EXPECT_WORD("pool=avg3", pool, ORACLE_POOL_AVG);
  EXPECT_WORD("pool=max3", pool, ORACLE_POOL_MAX);
  EXPECT_WORD("pool=max3", pool_kernel, 3);
  EXPECT_WORD("keep_window=yes", keep_window, 1);
  EXPECT_WORD("keep_window=no", keep_window, 0);
  EXPECT_WORD("edge=pad", pool_edge, ORACLE_EDGE_PAD);
  EXPECT_WORD("edge=shrink", pool_edge, ORACLE_EDGE_SHRINK);
  EXPECT_WORD("rows=mean", window_reduce, KVEVICT_REDUCE_MEAN);
  EXPECT_WORD("rows=max", window_reduce, KVEVICT_REDUCE_MAX);
  EXPECT_WORD("rows=sum", window_reduce, KVEVICT_REDUCE_SUM);
  EXPECT_WORD("row_weight=none", row_weight, ORACLE_ROW_WEIGHT_NONE);
  EXPECT_WORD("row_weight=past", row_weight, ORACLE_ROW_WEIGHT_PAST);
  EXPECT_WORD("softmax=causal", softmax_keys, ORACLE_SOFTMAX_CAUSAL);
  EXPECT_WORD("softmax=past", softmax_keys, ORACLE_SOFTMAX_PAST);
  EXPECT_WORD("group=mean", group_reduce, KVEVICT_REDUCE_MEAN);
  EXPECT_WORD("group=max", group_reduce, KVEVICT_REDUCE_MAX);
  EXPECT_WORD("group=sum", group_reduce, KVEVICT_REDUCE_SUM);
  EXPECT_WORD("order=reduce-pool", shaping_order,
              ORACLE_ORDER_REDUCE_POOL);
  EXPECT_WORD("order=pool-reduce", shaping_order,
              ORACLE_ORDER_POOL_REDUCE);
  EXPECT_WORD("group=max,order=reduce-logits", shaping_order,
              ORACLE_ORDER_REDUCE_LOGITS);
  EXPECT_WORD("scope=head", scope, KVEVICT_SCOPE_KV_HEAD);
  EXPECT_WORD("scope=layer", scope, KVEVICT_SCOPE_LAYER);
  EXPECT_WORD("scope=model", scope, KVEVICT_SCOPE_MODEL);
  EXPECT_WORD("over=mean", scope_reduce, KVEVICT_REDUCE_MEAN);
  EXPECT_WORD("over=max", scope_reduce, KVEVICT_REDUCE_MAX);
  EXPECT_WORD("over=sum", scope_reduce, KVEVICT_REDUCE_SUM);
  EXPECT_WORD("tie=lower", tie, KVEVICT_TIE_LOWER_POSITION);
  EXPECT_WORD("tie=higher", tie, KVEVICT_TIE_HIGHER_POSITION);
  EXPECT_WORD("split=uniform", layer_split, ORACLE_SPLIT_UNIFORM);
  EXPECT_WORD("split=geometric", layer_split, ORACLE_SPLIT_GEOMETRIC);
  EXPECT_WORD("split=arithmetic-kvf", layer_split,
              ORACLE_SPLIT_ARITHMETIC_KVF);
  EXPECT_WORD("split=arithmetic-kvpress", layer_split,
              ORACLE_SPLIT_ARITHMETIC_KVPRESS);
  EXPECT_WORD("split=arithmetic-adakv", layer_split,
              ORACLE_SPLIT_ARITHMETIC_ADAKV);
  EXPECT_WORD("merge=none", merge, KVEVICT_MERGE_NONE);
  EXPECT_WORD("merge=values", merge, KVEVICT_MERGE_VALUES);
  EXPECT_WORD("merge=pivot", merge, KVEVICT_MERGE_PIVOT);
  EXPECT_WORD("merge=weighted", merge, KVEVICT_MERGE_WEIGHTED);
  EXPECT_WORD("split=cake", layer_split, ORACLE_SPLIT_CAKE);
  EXPECT_WORD("split=lazy", layer_split, ORACLE_SPLIT_LAZY);
#undef EXPECT_WORD
}

Test(policy_text, ends_may_be_shares_of_the_budget) {
  kvevict_policy p =
      test_policy("snapkv:budget=1024,sink=0.01,recent=0.5,window=0.25");
  cr_expect(p.sink_share == 0.01 && p.recent_share == 0.5 &&
            p.window_share == 0.25 && p.n_sink == 4 && p.window == 32);
  ExpectText(&p, "snapkv:budget=1024,sink=0.01,recent=0.5,window=0.25");
  kvevict_resolved_policy r = {.struct_size = sizeof r};
  for (uint32_t n = 2000; n <= 8000; n *= 2) {
    EXPECT_OK(kvevict_policy_resolve(&p, n, &r));
    cr_expect(r.budget == 1024 && r.n_sink == 10 && r.n_recent == 512 &&
              r.window == 256);
  }
  p = test_policy("snapkv:recent=0.5,window=8,recent=7");
  cr_expect(p.recent_share == 0 && p.n_recent == 7);
  p = test_policy("h2o:budget=0.2,recent=0.5");
  EXPECT_OK(kvevict_policy_resolve(&p, 1000, &r));
  cr_expect(r.budget == 200 && r.n_recent == 100 && r.n_selected == 100);
  EXPECT_OK(kvevict_policy_resolve(&p, 2000, &r));
  cr_expect(r.budget == 400 && r.n_recent == 200);
  static const struct {
    const char *text, *words;
  } kBad[] = {
      {"h2o:recent=1.0", "column 12: recent=\"1.0\" is not a count"},
      {"h2o:recent=1.5", "share of the budget below 1"},
      {"h2o:recent=-0.5", "share of the budget below 1"},
      {"h2o:recent=0.0", "share of the budget below 1"},
      {"h2o:recent=nan", "share of the budget below 1"},
      {"h2o:budget=0.5,sink=0.1", "sink 0.1 with a budget that is a ratio"},
      {"tova:budget=0.5,window=0.1",
       "window 0.1 with a budget that is a ratio"},
      {"knorm:budget=0.5,recent=0.5,chunk=64", "recent 0.5 of a ratio"},
      {"snapkv:budget=0.5,recent=0.5,split=lazy", "recent 0.5 of a ratio"},
      {"lagkv:budget=0.5,recent=0.5,of=partition", "recent 0.5 with of"},
      {"streaming-llm:budget=64,recent=0.5", "recent 0.5 with streaming-llm"},
      {"streaming-llm:recent=64,sink=0.5", "sink 0.5 with streaming-llm"},
      {"snapkv:budget=64,sink=0.5,recent=0.5", "sink 32 + "},
  };
  for (size_t i = 0; i < sizeof kBad / sizeof *kBad; ++i) {
    EXPECT_INVALID(kvevict_policy_parse(kBad[i].text, &p), kBad[i].words);
  }
  p = test_policy("h2o:budget=64");
  p.recent_share = 1.0;
  EXPECT_INVALID(kvevict_policy_validate(&p), "recent 1", "[0, 1)");
}

#define KEYS_OF_MERGE ", merge, merge_threshold, merge_fraction"
#define KEYS_OF_RANKED                                                       \
  "budget, sink, recent, pool, edge, scope, over, tie, split, alpha, beta, " \
  "seed"
#define KEYS_OF_WEIGHT                                                       \
  ", select_block, chunk, weight, epsilon, redundancy, similarity, secure, " \
  "heads, floor, threshold, normalize" KEYS_OF_MERGE
#define KEYS_BY_QUERIES                                                  \
  "budget, sink, recent, window, keep_window, pool, edge, rows, "        \
  "row_weight, softmax, spread, group, order, scope, over, tie, split, " \
  "alpha, beta, tau1, tau2, lazy, seed" KEYS_OF_WEIGHT

#define KEYS_BY_SUMS                                                    \
  "budget, sink, recent, pool, edge, rows, group, order, scope, over, " \
  "tie, split, alpha, beta, seed" KEYS_OF_WEIGHT                        \
  ", rotate, margin, every, prompt, sums, sum_pool, sum_last, raw_first"

#define KEYS_BY_TABLES                                                        \
  "budget, sink, recent, pool, edge, group, order, scope, over, tie, split, " \
  "alpha, beta, seed" KEYS_OF_WEIGHT

#define KEYS_BY_CHUNKS                                                        \
  "budget, sink, recent, pool, edge, group, order, scope, over, tie, split, " \
  "alpha, beta, seed, block" KEYS_OF_WEIGHT

static const struct {
  const char* policy;
  const char* keys;
} kKeysOf[] = {
    {"none", "none"},
    {"streaming-llm",
     "budget, sink, recent, split, alpha, beta, select_block" KEYS_OF_MERGE},
    {"snapkv", KEYS_BY_QUERIES},
    {"pyramidkv", KEYS_BY_QUERIES},
    {"tova", KEYS_BY_QUERIES},
    {"r-kv", KEYS_BY_QUERIES},
    {"cake", KEYS_BY_QUERIES},
    {"h2o", KEYS_BY_SUMS},
    {"knorm", KEYS_OF_RANKED KEYS_OF_WEIGHT},
    {"keydiff", KEYS_OF_RANKED ", block" KEYS_OF_WEIGHT},
    {"q-filter", KEYS_OF_RANKED KEYS_OF_WEIGHT},
    {"lagkv", KEYS_OF_RANKED ", block, ranks, of" KEYS_OF_WEIGHT},
    {"cur", KEYS_OF_RANKED ", block" KEYS_OF_WEIGHT},
    {"expected-attention", KEYS_BY_TABLES},
    {"triattention", KEYS_BY_TABLES},
    {"non-causal", KEYS_BY_CHUNKS},
    {"random", KEYS_OF_RANKED KEYS_OF_WEIGHT},
    {"custom", KEYS_OF_RANKED KEYS_OF_WEIGHT},
};

/* Every key with a value that is no policy's default, or with all that are. */
static const char* const kPairs[] = {"budget=100",
                                     "sink=1",
                                     "recent=1",
                                     "window=16",
                                     "pool=max3",
                                     "edge=shrink",
                                     "rows=sum",
                                     "rows=mean",
                                     "group=max",
                                     "scope=layer",
                                     "scope=head",
                                     "over=max",
                                     "tie=higher",
                                     "split=arithmetic-kvf",
                                     "alpha=0.5",
                                     "beta=2",
                                     "seed=7",
                                     "order=pool-reduce",
                                     "keep_window=no",
                                     "block=64",
                                     "weight=given",
                                     "epsilon=0.5",
                                     "softmax=past",
                                     "row_weight=past",
                                     "redundancy=0.5",
                                     "similarity=0.25",
                                     "ranks=no",
                                     "of=partition",
                                     "select_block=20",
                                     "chunk=0",
                                     "group=mean",
                                     "over=mean",
                                     "spread=3.5",
                                     "tau1=1.5",
                                     "tau2=0.25",
                                     "lazy=0.75",
                                     "merge=pivot",
                                     "merge_threshold=0.5",
                                     "merge_fraction=0.5",
                                     "sums=query",
                                     "sums=head",
                                     "sum_pool=7",
                                     "sum_last=0",
                                     "raw_first=no"};

static bool HasWord(const char* list, const char* word) {
  char spaced[512], wanted[32];
  snprintf(spaced, sizeof spaced, " %s,", list);
  snprintf(wanted, sizeof wanted, " %s,", word);
  return strstr(spaced, wanted) != NULL;
}

Test(policy_text, keys_without_meaning_for_the_policy_are_errors) {
  uint32_t n = 0;
  kvevict_policy_info info = {.struct_size = sizeof info};
  while (kvevict_policy_at(n, &info) == KVEVICT_OK) ++n;
  cr_assert_eq(n, sizeof kKeysOf / sizeof kKeysOf[0]);
  for (uint32_t i = 0; i < n; ++i) {
    const char* name = kKeysOf[i].policy;
    for (size_t j = 0; j < sizeof kPairs / sizeof kPairs[0]; ++j) {
      char text[64], key[16], message[320];
      snprintf(text, sizeof text, "%s: %s", name, kPairs[j]);
      /* Its order takes no other. */
      if (strcmp(text, "r-kv: group=mean") == 0) continue;
      /* Nor do rows that are measured. */
      if (strcmp(text, "r-kv: spread=3.5") == 0 ||
          strcmp(text, "tova: spread=3.5") == 0 ||
          strcmp(text, "cake: rows=sum") == 0 ||
          strcmp(text, "cake: row_weight=past") == 0) {
        continue;
      }
      snprintf(key, sizeof key, "%.*s", (int)strcspn(kPairs[j], "="),
               kPairs[j]);
      kvevict_policy policy = KVEVICT_POLICY_INIT;
      if (HasWord(kKeysOf[i].keys, key)) {
        EXPECT_OK(kvevict_policy_parse(text, &policy));
        const kvevict_policy defaults = test_policy(name);
        const bool says = !test_same_policy(&policy, &defaults);
        /* Of these the window is all that stays of both ends. */
        const bool neither = policy.sink == 0 &&
                             strcmp(name, "snapkv") != 0 &&
                             strcmp(kPairs[j], "keep_window=no") == 0;
        snprintf(text, sizeof text, "%s%s%s%s", name, says ? ":" : "",
                 neither ? "sink=0,recent=0," : "", says ? kPairs[j] : "");
        ExpectText(&policy, text);
      } else {
        snprintf(message, sizeof message,
                 "policy text, column %zu: %s has no key \"%s\"; it has %s",
                 strlen(name) + 3, name, key, kKeysOf[i].keys);
        EXPECT_INVALID(kvevict_policy_parse(text, &policy), message);
      }
    }
  }
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

static bool KeepsAnEnd(const kvevict_policy* policy) {
  kvevict_resolved_policy of = {.struct_size = sizeof of};
  EXPECT_OK(kvevict_policy_resolve(policy, 8192, &of));
  return of.n_sink + of.n_recent > 0;
}

static void ExpectSaid(const char* what, const kvevict_policy* policy) {
  char text[1024];
  EXPECT_OK(kvevict_policy_format(policy, text, sizeof text, NULL));
  cr_expect(strstr(text, "sink=0") != NULL && strstr(text, "recent=0") != NULL,
            "%s: %s", what, text);
  kvevict_policy again = KVEVICT_POLICY_INIT;
  EXPECT_OK(kvevict_policy_parse(text, &again));
  ExpectText(&again, text);
}

Test(policy_text, every_policy_keeps_an_end_by_itself) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  for (uint32_t i = 1; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    kvevict_policy policy = test_policy(info.name);
    policy.budget = 0.5;
    cr_expect(KeepsAnEnd(&policy), "%s", info.name);
    policy.sink = policy.recent = policy.keep_window = 0;
    if (!KeepsAnEnd(&policy)) ExpectSaid(info.name, &policy);
    cr_expect_neq(KeepsAnEnd(&policy),
                  policy.kind != ORACLE_STREAMING_LLM, "%s", info.name);
  }
}

Test(policy_text, presets_that_keep_neither_end_say_so) {
  kvevict_preset_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  for (uint32_t i = 0; kvevict_preset_at(i, &info) == KVEVICT_OK; ++i) {
    const kvevict_policy policy = test_policy(info.name);
    if (KeepsAnEnd(&policy)) continue;
    ++n;
    cr_expect(strstr(info.policy_text, "sink=0") != NULL, "%s", info.name);
    ExpectSaid(info.name, &policy);
  }
  cr_expect_gt(n, 5u);
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
    {"rows by max", "h2o:rows=max", 0, "max"},
    {"logits by mean", "snapkv:order=reduce-logits", 0, "group mean"},
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
      {"h2o:rows=max", "rows max is not mean or sum"},
      {"h2o:sums=layer", "sums layer with scope head"},
      {"knorm:rescue=1", "rescue 1 with select_block 1"},
      {"h2o:diverse_mass=1.5", "diverse_mass 1.5 is not in [0, 1]"},
      {"h2o:diverse_mass=nan", "diverse_mass nan is not in [0, 1]"},
      {"h2o:diverse_mass=0.5", "diverse_mass 0.5 with select_block 1"},
      {"knorm:select_block=4,diverse_mass=0.5",
       "diverse_mass 0.5 with key norm: it is a share of a mass"},
      {"r-kv:budget=99,select_block=4,diverse_mass=0.5",
       "diverse_mass 0.5 with redundancy"},
      {"h2o:select_block=4,scope=model,diverse_mass=0.5",
       "diverse_mass 0.5 with scope model"},
      {"h2o:select_block=4,rescue=1,diverse_mass=0.5",
       "diverse_mass 0.5 with rescue"},
      {"h2o:sum_last=65", "sum_last 65 is not in [0, 64]"},
      {"h2o:sum_last=8", "sum_last 8 needs sums layer and rows sum"},
      {"h2o:sum_last=8,sums=layer,scope=layer,rows=mean",
       "sum_last 8 needs sums layer and rows sum"},
      {"h2o:raw_first=yes", "raw_first yes needs sum_last above 0"},
      {"h2o:sum_pool=0", "sum_pool 0 is not in [1, 1023]"},
      {"h2o:sum_pool=1024", "sum_pool 1024 is not in [1, 1023]"},
      {"keydiff:block=1", "block 1 is not 0 or in [2, 65536]"},
      {"cur:block=0", "block 0 is not in [2, 65536]"},
      {"tova:order=reduce-logits,group=sum",
       "order reduce-logits with group sum: only max reduces logits"},
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
  policy.pool_width = 4;
  EXPECT_INVALID(kvevict_policy_format(&policy, text, sizeof text, &length),
                 "pool width");
  EXPECT_UNTOUCHED(text);
  cr_assert_eq(length, 99);
  GROWN(kvevict_policy) grown = {KVEVICT_POLICY_INIT};
  EXPECT_CHECKS_STRUCT_SIZE(
      grown, kvevict_policy_format(&grown.value, NULL, 0, &length));
}

/* The defaults, but for the fields that mean something to the policy. */
static kvevict_policy WhatCounts(const kvevict_policy* policy) {
  kvevict_policy p;
  EXPECT_OK(kvevict_policy_init(&p, sizeof p, policy->kind));
  const bool by_queries =
      p.kind == ORACLE_SNAPKV || p.kind == ORACLE_PYRAMIDKV ||
      p.kind == ORACLE_TOVA || p.kind == ORACLE_R_KV ||
      p.kind == ORACLE_CAKE;
  if (p.kind == ORACLE_NONE) return p;
  p.budget = policy->budget;
  p.n_sink = policy->sink;
  p.n_recent = policy->recent;
  p.split = policy->split;
  p.alpha = policy->alpha;
  p.beta = policy->beta;
  p.select_block = policy->select_block;
  p.merge = policy->merge;
  p.merge_threshold = policy->merge_threshold;
  p.merge_fraction = policy->merge_fraction;
  if (p.kind == ORACLE_STREAMING_LLM) return p;
  p.pool = policy->pool;
  p.pool_width = policy->pool_width;
  p.edge = policy->edge;
  p.scope = policy->scope;
  p.over = policy->over;
  p.tie = policy->tie;
  if (by_queries) {
    p.window = policy->window;
    p.keep_window = policy->keep_window;
    p.row_weight = policy->row_weight;
    p.softmax = policy->softmax;
    p.spread = policy->spread;
    p.tau1 = policy->tau1;
    p.tau2 = policy->tau2;
    p.lazy = policy->lazy;
  }
  const bool by_sums = p.kind == ORACLE_H2O;
  if (by_queries || by_sums) p.rows = policy->rows;
  if (by_sums) {
    p.sums = policy->sums;
    p.sum_pool = policy->sum_pool;
    p.sum_last = policy->sum_last;
    p.raw_first = policy->raw_first;
  }
  const bool by_tables = p.kind == ORACLE_EXPECTED_ATTENTION ||
                         p.kind == ORACLE_TRIATTENTION;
  const bool by_chunks = p.kind == ORACLE_NON_CAUSAL;
  if (by_queries || by_sums || by_tables || by_chunks) {
    p.group = policy->group;
    p.order = policy->order;
  }
  if (p.kind == ORACLE_LAGKV || p.kind == ORACLE_CUR ||
      p.kind == ORACLE_KEYDIFF || by_chunks) {
    p.block = policy->block;
  }
  if (p.kind == ORACLE_LAGKV) {
    p.ranks = policy->ranks;
    p.of = policy->of;
  }
  p.chunk = policy->chunk;
  p.weight = policy->weight;
  p.epsilon = policy->epsilon;
  p.redundancy = policy->redundancy;
  p.similarity = policy->similarity;
  p.secure = policy->secure;
  p.heads = policy->heads;
  p.floor = policy->floor;
  p.threshold = policy->threshold;
  p.normalize = policy->normalize;
  p.seed = policy->seed;
  p.rescue = policy->rescue;
  p.anchor = policy->anchor;
  p.diverse_mass = policy->diverse_mass;
  return p;
}

Test(policy_text, parsing_what_was_printed_gives_back_all_that_counts) {
  test_random random = test_random_start("policy_text round trip");
  for (int i = 0; i < 20000; ++i) {
    const kvevict_policy policy = test_random_policy(&random);
    char text[768];
    EXPECT_OK(kvevict_policy_format(&policy, text, sizeof text, NULL));
    kvevict_policy again = KVEVICT_POLICY_INIT;
    EXPECT_OK(kvevict_policy_parse(text, &again));
    const kvevict_policy expected = WhatCounts(&policy);
    EXPECT(test_same_policy(&again, &expected), "round %d: %s", i, text);
  }
}

static kvevict_plan* PlanOf(const kvevict_context* context,
                            const kvevict_geometry* geometry,
                            const kvevict_policy* policy) {
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(context, geometry, policy, NULL, &plan));
  return plan;
}

Test(policy_text, what_is_not_printed_selects_nothing_else) {
  test_random random = test_random_start("policy_text selection");
  kvevict_context* context = NULL;
  EXPECT_OK(kvevict_context_create(NULL, &context));
  const kvevict_layer_geometry layer = test_layer(4, 2, 8, 8);
  static const float kInvFreq[] = {1.0f, 0.1f};
  kvevict_geometry geometry = test_geometry(3, 1000, &layer);
  geometry.rope_inv_freq = kInvFreq;
  geometry.rope_inv_freq_len = 2;
  for (int i = 0; i < 2000; ++i) {
    const kvevict_policy policy = test_random_policy(&random);
    char text[768];
    EXPECT_OK(kvevict_policy_format(&policy, text, sizeof text, NULL));
    const kvevict_policy again = test_policy(text);
    kvevict_plan* plans[2] = {PlanOf(context, &geometry, &policy),
                              PlanOf(context, &geometry, &again)};
    const uint32_t at = test_random_below(&random, 3);
    const uint32_t n_tokens = test_random_between(&random, 1, 1000);
    kvevict_select_options options[2] = {KVEVICT_SELECT_OPTIONS_INIT,
                                         KVEVICT_SELECT_OPTIONS_INIT};
    kvevict_keep_lists keep[2] = {KVEVICT_KEEP_LISTS_INIT,
                                  KVEVICT_KEEP_LISTS_INIT};
    kvevict_status status[2];
    for (int p = 0; p < 2; ++p) {
      status[p] = kvevict_plan_selection(plans[p], at, n_tokens, 0, &options[p],
                                         &keep[p]);
      if (options[p].n_rows == 0) options[p].reduce = 0; /* of nothing */
      kvevict_plan_destroy(plans[p]);
    }
    EXPECT(status[0] == status[1], "round %d: %s", i, text);
    EXPECT(memcmp(&options[0], &options[1], sizeof options[0]) == 0,
           "round %d: %s", i, text);
    EXPECT(memcmp(&keep[0], &keep[1], sizeof keep[0]) == 0, "round %d: %s", i,
           text);
  }
  kvevict_context_destroy(context);
}

/* Whatever stands in the text, the answer is a policy or an error. */
Test(policy_text, damaged_texts_are_errors_or_policies) {
  test_random random = test_random_start("policy_text damage");
  for (int i = 0; i < 20000; ++i) {
    const kvevict_policy policy = test_random_policy(&random);
    char text[768];
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
