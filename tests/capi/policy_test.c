/* Policies as a whole: values that go together, and the table of policies.
 * policy_parameters_test.c has the values one by one. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/policies.h"

Test(policy, of_every_name_is_valid) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    EXPECT_OK(kvevict_policy_validate(test_policy(info.name)));
  }
}

/* ---- Values that do not go together ---- */

static const struct {
  const char *text, *message;
} kRefused[] = {
    /* The budget has room for what must stay. */
    {"snapkv:budget=36", "sink 4 + window 32 >= budget 36"},
    {"snapkv:budget=36.9", "sink 4 + window 32 >= budget 36"},
    {"snapkv:budget=64,recent=60", "sink 4 + recent 60 >= budget 64"},
    {"knorm:budget=0.5,recent=2147483647",
     "sink 4 + recent 2147483647 > 2147483647 tokens, the longest context"},
    {"streaming-llm:sink=2147483647,recent=2147483647",
     "sink 2147483647 >= 2147483647 tokens, the longest context"},
    {"snapkv:budget=2048,recent=2044", "sink 4 + recent 2044 >= budget 2048"},
    {"pyramidkv:budget=10", "sink 4 + window 32 >= budget 10"},
    {"streaming-llm:budget=4", "sink 4 >= budget 4"},
    {"random:budget=6,sink=4,recent=3", "sink 4 + recent 3 > budget 6"},
    {"snapkv:budget=64,sink=0.5,recent=0.5",
     "sink 32 + window 32 >= budget 64"},
    /* These are shares of a budget that is not known. */
    {"h2o:budget=0.5,sink=0.1", "sink 0.1 with a budget that is a ratio"},
    {"tova:budget=0.5,window=0.1", "window 0.1 with a budget that is a ratio"},
    {"lagkv:budget=100,of=partition,sink=0.2", "sink 0.2 with of partition"},
    {"knorm:budget=0.5,recent=0.5,chunk=64",
     "recent 0.5 of a ratio with chunk"},
    {"snapkv:budget=0.5,recent=0.5,split=lazy",
     "recent 0.5 of a ratio with split lazy"},
    {"lagkv:budget=0.5,recent=0.5,of=partition",
     "recent 0.5 with of partition"},
    {"streaming-llm:budget=64,recent=0.5", "recent 0.5 with streaming-llm"},
    {"streaming-llm:recent=64,sink=0.5", "sink 0.5 with streaming-llm"},
    /* A rule that counts single tokens cannot keep whole blocks. */
    {"snapkv:budget=100,heads=adaptive,select_block=4",
     "select_block 4 with heads that are not equal: these count single tokens"},
    {"snapkv:budget=100,heads=threshold,select_block=4",
     "select_block 4 with heads that are not equal: these count single tokens"},
    {"lagkv:budget=0.5,of=partition,select_block=4",
     "select_block 4 with of partition: these count single tokens"},
    /* Logits are reduced by maximum, and sums are not. */
    {"snapkv:order=reduce-logits",
     "order reduce-logits with group mean: only max reduces logits"},
    {"tova:order=reduce-logits,group=sum",
     "order reduce-logits with group sum: only max reduces logits"},
    {"expected-attention:group=max,order=reduce-logits",
     "order reduce-logits: expected attention has no logits to reduce"},
    {"h2o:rows=max", "rows max is not mean or sum"},
    {"h2o:sums=layer", "sums layer with scope head"},
    {"h2o:sum_last=8", "sum_last 8 needs sums layer and rows sum"},
    {"h2o:sum_last=8,sums=layer,scope=layer,rows=mean",
     "sum_last 8 needs sums layer and rows sum"},
    {"h2o:raw_first=yes", "raw_first yes needs sum_last above 0"},
    /* These measures rank blocks by other numbers. */
    {"knorm:rescue=1", "rescue 1 with select_block 1"},
    {"h2o:diverse_mass=0.5", "diverse_mass 0.5 with select_block 1"},
    {"knorm:select_block=4,diverse_mass=0.5",
     "diverse_mass 0.5 with key norm: it is a share of a mass"},
    {"r-kv:budget=99,select_block=4,diverse_mass=0.5",
     "diverse_mass 0.5 with redundancy"},
    {"h2o:select_block=4,prior=mean,diverse_mass=0.5",
     "diverse_mass 0.5 with prior mean"},
    {"h2o:select_block=4,scope=model,diverse_mass=0.5",
     "diverse_mass 0.5 with scope model"},
    {"h2o:select_block=4,rescue=1,diverse_mass=0.5",
     "diverse_mass 0.5 with rescue"},
    /* Rows that are pooled, and what they secure. */
    {"expected-attention:order=pool-rows",
     "order pool-rows: expected attention has no window's rows to pool"},
    {"snapkv:edge=mass", "edge mass needs order pool-rows"},
    {"snapkv:order=pool-rows,edge=mass,pool=max3", "edge mass needs"},
    {"cake:order=pool-rows",
     "spread 200: needs rows mean, row_weight none and an order other than "
     "reduce-logits and pool-rows"},
    {"snapkv:first_stage_mass=0.5",
     "first_stage_mass 0.5 needs order pool-rows"},
    {"snapkv:order=pool-rows,first_stage_mass=0.5,keep_window=no",
     "first_stage_mass 0.5 needs keep_window yes"},
    {"snapkv:order=pool-rows,first_stage_mass=0.5,scope=layer",
     "first_stage_mass 0.5 needs scope head"},
    {"snapkv:order=pool-rows,first_stage_mass=0.5,heads=threshold",
     "first_stage_mass 0.5 needs heads other than threshold"},
    {"snapkv:budget=99,order=pool-rows,first_stage_mass=0.5,select_block=4",
     "first_stage_mass 0.5 needs select_block 1"},
    {"custom:sink=0,budget=19,select_block=20", "select_block 20 > budget 19"},
    {"custom:budget=50,sink=4,recent=12,select_block=20",
     "sink 20 in whole blocks + recent 12 + select_block 20 - 1 > budget 50"},
    /* Chunks. */
    {"snapkv:chunk=64", "chunk 64: window attention reads queries"},
    {"tova:chunk=64", "chunk 64: window attention reads queries"},
    {"h2o:chunk=64", "chunk 64: accumulated attention reads queries"},
    {"knorm:chunk=64,heads=adaptive", "chunk 64 with heads that are not equal"},
    {"knorm:chunk=64,heads=threshold",
     "chunk 64 with heads that are not equal"},
    {"knorm:chunk=64,select_block=16", "chunk 64 with select_block above 1"},
    {"lagkv:chunk=64,of=partition", "chunk 64 with of partition"},
    {"knorm:chunk=64,prompt=pinned",
     "chunk 64 with a prompt that is pinned or beside"},
    /* Layers that compete. */
    {"streaming-llm:budget=20,split=scores", "split scores: position has no"},
    {"snapkv:split=scores,heads=adaptive-blend",
     "split scores with heads adaptive-blend"},
    {"snapkv:split=scores,heads=threshold",
     "split scores with heads threshold"},
    {"snapkv:split=scores,heads=adaptive,normalize=yes",
     "split scores with normalize yes"},
    {"snapkv:split=scores,weight=norm,secure=0.5", "split scores with secure"},
    {"knorm:split=scores,chunk=64", "split scores with chunk"},
    {"knorm:split=scores,select_block=4,rescue=1", "split scores with rescue"},
    {"h2o:split=scores,select_block=4,diverse_mass=0.5",
     "split scores with diverse_mass"},
    {"snapkv:split=scores,prompt=pinned",
     "split scores with a prompt that is pinned or beside"},
    {"lagkv:split=scores,of=partition", "split scores with of partition"},
    {"keydiff:split=scores,block=8", "split scores with block above 0"},
    {"snapkv:split=scores,scope=model", "split scores with scope model"},
    /* Weights by shares. */
    {"snapkv:share=heads", "share heads with weight none"},
    {"knorm:weight=norm,share=heads",
     "share heads with weight norm: only weights that are given"},
    /* Values and chance. */
    {"snapkv:secure_values=8,scope=layer",
     "secure_values 8 with scope other than head: it counts single tokens"},
    {"snapkv:secure_values=0.5,heads=adaptive",
     "secure_values 0.5 with heads that are not equal"},
    {"custom:secure_values=8,split=scores",
     "secure_values 8 with split scores"},
    {"snapkv:secure_values=8,select_block=4",
     "secure_values 8 with select_block above 1"},
    {"snapkv:secure_values=8,weight=norm,secure=0.5",
     "secure_values 8 with secure"},
    {"knorm:secure_values=8,chunk=64", "secure_values 8 with chunk"},
    {"knorm:draw=yes", "draw yes with key norm: its scores are no shares"},
    {"r-kv:draw=yes", "draw yes with redundancy: its scores are no shares"},
    {"tova:draw=yes",
     "draw yes with scope other than head: single tokens of each head are "
     "drawn"},
    {"snapkv:draw=yes,heads=threshold", "draw yes with heads threshold"},
    {"snapkv:draw=yes,select_block=4", "draw yes with select_block above 1"},
    {"custom:draw=yes,chunk=64", "draw yes with chunk"},
    {"snapkv:draw=yes,standardize=yes", "draw yes with standardize yes"},
    {"snapkv:draw=yes,leverage=1", "draw yes with leverage"},
    /* Reference queries. */
    {"cake:reference=2", "reference 2 with spread 200"},
    {"cake:reference=2,spread=0", "reference 2 with split cake"},
    {"snapkv:reference=2,split=lazy", "reference 2 with split lazy"},
    {"knorm:reference=2", "reference 2 without fit"},
    /* The rest. */
    {"non-causal:group=max,order=reduce-logits",
     "order reduce-logits: attention within chunks has no logits to reduce"},
    {"non-causal:block=0", "block 0 < 2: only keydiff takes 0"},
    {"cur:block=0", "block 0 < 2: only keydiff takes 0"},
    {"lagkv:block=0", "block 0 < 2: only keydiff takes 0"},
    {"snapkv:budget=99,heads=adaptive,prompt=beside",
     "prompt beside with heads that are not equal"},
    {"snapkv:budget=2048,scope=model,split=geometric",
     "split geometric with scope model"},
    {"pyramidkv:scope=model",
     "split geometric with scope model: one keep list needs the same budget "
     "in every layer"},
};

/* Creates the policy that the text names and sets its values one by one. */
static kvevict_policy* SetOneByOne(const char* text) {
  char pairs[128];
  snprintf(pairs, sizeof pairs, "%s", text);
  char* next = strchr(pairs, ':');
  *next++ = 0;
  kvevict_policy* policy = test_policy(pairs);
  while (next != NULL) {
    char* const key = next;
    next = strchr(key, ',');
    if (next != NULL) *next++ = 0;
    char* const value = strchr(key, '=');
    *value = 0;
    EXPECT_OK(kvevict_policy_set(policy, key, value + 1));
  }
  return policy;
}

Test(policy, values_that_do_not_go_together_are_refused) {
  for (size_t i = 0; i < sizeof kRefused / sizeof *kRefused; ++i) {
    char message[160];
    snprintf(message, sizeof message, "policy text: %s", kRefused[i].message);
    EXPECT_NO_POLICY(kRefused[i].text, message);
    EXPECT_INVALID(kvevict_policy_validate(SetOneByOne(kRefused[i].text)),
                   kRefused[i].message);
  }
}

Test(policy, values_that_just_go_together_are_accepted) {
  static const char* const kTexts[] = {"snapkv:budget=37",
                                       "snapkv:budget=37,recent=32",
                                       "snapkv:budget=5,keep_window=no",
                                       "streaming-llm:budget=5",
                                       "random:budget=7,sink=4,recent=3",
                                       "snapkv:group=max,order=reduce-logits",
                                       "snapkv:rows=max",
                                       "keydiff:block=0",
                                       "pyramidkv:alpha=1,pool=avg1"};
  for (size_t i = 0; i < sizeof kTexts / sizeof *kTexts; ++i) {
    const kvevict_policy* policy = SetOneByOne(kTexts[i]);
    EXPECT_OK(kvevict_policy_validate(policy));
    cr_expect(test_same_policy(policy, test_policy(kTexts[i])), "%s",
              kTexts[i]);
  }
}

/* ---- Copies ---- */

Test(policy, copies_have_their_own_values) {
  kvevict_policy *policy = NULL, *copy = NULL;
  EXPECT_OK(kvevict_policy_create("snapkv:budget=64,seed=9", &policy));
  EXPECT_OK(kvevict_policy_copy(policy, &copy));
  cr_expect(test_same_policy(policy, copy));
  EXPECT_OK(kvevict_policy_set(copy, "budget", "128"));
  cr_expect(test_same_policy(policy, test_policy("snapkv:budget=64,seed=9")));
  kvevict_policy_destroy(policy);
  cr_expect(test_same_policy(copy, test_policy("snapkv:budget=128,seed=9")));
  kvevict_policy_destroy(copy);
  kvevict_policy_destroy(NULL);
}

/* ---- Bad calls ---- */

Test(policy, null_arguments_are_errors) {
  kvevict_policy* policy = test_policy("snapkv");
  kvevict_policy* none = NULL;
  char text[TEST_VALUE_TEXT];
  double number = 3;
  GUARD(text);
  EXPECT_INVALID(kvevict_policy_create(NULL, &none), "text is NULL");
  EXPECT_INVALID(kvevict_policy_create("none", NULL), "out_policy is NULL");
  EXPECT_INVALID(kvevict_policy_copy(NULL, &none), "policy is NULL");
  EXPECT_INVALID(kvevict_policy_copy(policy, NULL), "out_policy is NULL");
  EXPECT_INVALID(kvevict_policy_set(NULL, "budget", "1"), "policy is NULL");
  EXPECT_INVALID(kvevict_policy_set(policy, NULL, "1"), "key is NULL");
  EXPECT_INVALID(kvevict_policy_set(policy, "budget", NULL), "value is NULL");
  EXPECT_INVALID(kvevict_policy_set_number(NULL, "budget", 1),
                 "policy is NULL");
  EXPECT_INVALID(kvevict_policy_set_number(policy, NULL, 1), "key is NULL");
  EXPECT_INVALID(kvevict_policy_get(NULL, "tie", text, sizeof text, NULL),
                 "policy is NULL");
  EXPECT_INVALID(kvevict_policy_get(policy, NULL, text, sizeof text, NULL),
                 "key is NULL");
  EXPECT_INVALID(kvevict_policy_get(policy, "tie", NULL, 40, NULL),
                 "text is NULL");
  EXPECT_INVALID(kvevict_policy_get_number(NULL, "budget", &number),
                 "policy is NULL");
  EXPECT_INVALID(kvevict_policy_get_number(policy, NULL, &number),
                 "key is NULL");
  EXPECT_INVALID(kvevict_policy_get_number(policy, "budget", NULL),
                 "out_value is NULL");
  EXPECT_INVALID(kvevict_policy_validate(NULL), "policy is NULL");
  EXPECT_INVALID(kvevict_parameter_at("snapkv", 0, NULL), "out", "NULL");
  EXPECT_UNTOUCHED(text);
  cr_expect(none == NULL && number == 3);
}

/* ---- The table of policies ---- */

Test(policy, enumeration_names_every_kind) {
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  for (; kvevict_policy_at(n, &info) == KVEVICT_OK; ++n) {
    cr_expect_eq(info.struct_size, sizeof info);
    cr_expect_not_null(info.signal);
    EXPECT(info.summary[0] != 0, "%s", info.name);
    cr_expect_not_null(info.trigger);
    cr_expect(info.paper[0] == 0 || strncmp(info.paper, "arXiv:", 6) == 0);
    const oracle_policy values = oracle_policy_from(info.name);
    kvevict_policy* again = oracle_policy_create(&values);
    EXPECT(test_same_policy(again, test_policy(info.name)), "%s", info.name);
    kvevict_policy_destroy(again);
  }
  cr_assert(n > ORACLE_CUSTOM, "%u policies", n);
}

Test(policy, enumeration_ends) {
  EXPECT_ENDS_AT(999, kvevict_policy_info, kvevict_policy_at);
}
