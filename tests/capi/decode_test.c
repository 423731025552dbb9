/* Evicts after every step of a decoding loop. A naive model says when evictions
 * work and how long caches get. */
#include <stdio.h>

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

/* A loop without its scores. */
typedef struct loop {
  const kvevict_policy* handle;
  const oracle_policy* policy;
  uint32_t stored[kLayers];
  uint32_t prompt_slots[kLayers];
  uint32_t n_seen;
  bool has_prompt;
  uint32_t n_prompt;
  uint32_t last_round;
} loop;

static bool IsBeside(const loop* a) {
  return a->policy->prompt == ORACLE_PROMPT_BESIDE ||
         a->policy->prompt == ORACLE_PROMPT_PINNED_BESIDE;
}
static bool IsPinned(const loop* a) {
  return a->policy->prompt == ORACLE_PROMPT_PINNED ||
         a->policy->prompt == ORACLE_PROMPT_PINNED_BESIDE;
}

static uint32_t Round(const loop* a) {
  const uint32_t every = a->policy->every > 1 ? a->policy->every : 1;
  return (a->n_seen - a->n_prompt) / every;
}

static void Append(loop* a, uint32_t n) {
  for (int l = 0; l < kLayers; ++l) a->stored[l] += n;
  a->n_seen += n;
}

static void EndPrompt(loop* a) {
  a->has_prompt = true;
  a->n_prompt = a->n_seen;
  a->last_round = 0;
  for (int l = 0; l < kLayers; ++l) a->prompt_slots[l] = a->stored[l];
}

static void Trim(loop* a, uint32_t n_tokens) {
  for (int l = 0; l < kLayers; ++l) {
    a->stored[l] -= a->n_seen - n_tokens;
    if (a->prompt_slots[l] > a->stored[l]) a->prompt_slots[l] = a->stored[l];
  }
  a->n_seen = n_tokens;
  if (!a->has_prompt) return;
  if (a->n_prompt > n_tokens) a->n_prompt = n_tokens;
  if (a->last_round > Round(a)) a->last_round = Round(a);
}

/* Whether a layer lost tokens. */
static bool Evict(loop* a) {
  if (!a->has_prompt && a->policy->prompt != ORACLE_PROMPT_INSIDE) {
    return false;
  }
  if (a->has_prompt && a->policy->every > 1 && Round(a) <= a->last_round) {
    return false;
  }
  if (a->has_prompt) a->last_round = Round(a);
  const uint32_t n_context = IsBeside(a) ? a->n_seen - a->n_prompt : a->n_seen;
  uint32_t budgets[kLayers] = {0};
  if (n_context > 0) {
    EXPECT_OK(kvevict_policy_layer_budgets(
        a->handle, n_context < kMostSlots ? n_context : kMostSlots, budgets,
        kLayers));
  }
  bool loses = false;
  for (int l = 0; l < kLayers; ++l) {
    if (IsBeside(a)) budgets[l] += a->prompt_slots[l];
    if (a->stored[l] <= budgets[l] + a->policy->margin) continue;
    a->stored[l] = budgets[l];
    loses = true;
  }
  return loses;
}

/* The positions of streaming-llm are known too while nothing was trimmed. */
static void ExpectStreaming(const test_model* m, const loop* a, uint32_t l,
                            const char* what) {
  int32_t positions[kMostSlots];
  test_model_positions(m, l, 0, positions);
  uint32_t n_first = a->policy->sink;
  if (IsPinned(a) && a->prompt_slots[l] > n_first) {
    n_first = a->prompt_slots[l];
  }
  for (uint32_t i = 0; i < a->stored[l]; ++i) {
    const uint32_t expected = i < n_first ? i : a->n_seen - a->stored[l] + i;
    EXPECT(positions[i] == (int32_t)expected,
           "%s: at %u tokens layer %u has %d in slot %u, not %u", what,
           a->n_seen, l, positions[i], i, expected);
  }
}

static void ExpectAsModel(const test_model* m, const loop* a,
                          const char* what) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    const uint32_t stored = test_model_stored(m, l);
    EXPECT(stored == a->stored[l], "%s: at %u tokens layer %u holds %u, not %u",
           what, a->n_seen, l, stored, a->stored[l]);
  }
}

static void Run(const char* text, uint64_t seed) {
  test_random random = {seed};
  test_model* m = Model(text, seed);
  loop a = {.handle = m->policy_handle, .policy = &m->policy};
  const bool streams = m->policy.kind == ORACLE_STREAMING_LLM;
  const uint32_t n_prompt = 20 + test_random_below(&random, 20);
  /* The prompt comes in chunks, with evictions between them. */
  while (a.n_seen < n_prompt) {
    const uint32_t n = 1 + test_random_below(&random, n_prompt - a.n_seen);
    test_model_step(m, n);
    Append(&a, n);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    Evict(&a);
    ExpectAsModel(m, &a, text);
  }
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  EndPrompt(&a);
  bool was_trimmed = false;
  uint32_t last_length = a.n_seen; /* at the last eviction: trims end there */
  while (a.n_seen < 1500) {
    const uint32_t n = 1 + test_random_below(&random, 4) / 3;
    test_model_step(m, n);
    Append(&a, n);
    if (a.n_seen > last_length && test_random_below(&random, 20) == 0) {
      const uint32_t most = a.n_seen - last_length;
      const uint32_t back = 1 + test_random_below(&random, most < 3 ? most : 3);
      EXPECT_OK(kvevict_sequence_trim_to(m->sequence, a.n_seen - back, NULL));
      Trim(&a, a.n_seen - back);
      m->n_seen = a.n_seen;
      /* Queries that the trimmed ones pushed out are observed again. */
      const uint32_t window = m->policy.window;
      const uint32_t first = a.n_seen > window ? a.n_seen - window : 0;
      test_model_observe(m, first, a.n_seen - first);
      was_trimmed = true;
    }
    kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
    EXPECT_OK(test_model_evict(m, NULL, &report));
    const bool loses = Evict(&a);
    if (loses) last_length = a.n_seen;
    EXPECT(report.evicted == loses, "%s: at %u tokens evicted is %u", text,
           a.n_seen, report.evicted);
    ExpectAsModel(m, &a, text);
    for (uint32_t l = 0; streams && !was_trimmed && l < kLayers; ++l) {
      ExpectStreaming(m, &a, l, text);
    }
    if (test_random_below(&random, 50) == 0) test_model_check(m, text);
  }
  test_model_check(m, text);
  test_model_destroy(m);
}

Test(decode, caches_are_as_long_as_the_naive_model_says) {
  static const char* const kPolicies[] = {
      "streaming-llm:budget=30,sink=4",
      "streaming-llm:sink=4,recent=25",
      "tova:budget=24",
      "knorm:sink=0,budget=32,split=geometric,alpha=0.9",
      "snapkv:budget=28,sink=2,window=4,pool=avg3,scope=layer",
      "r-kv:budget=26,window=4",
      "keydiff:budget=0.4,sink=1",
      "random:sink=0,budget=24,scope=model"};
  static const char* const kTriggers[] = {"",
                                          "margin=7",
                                          "every=5",
                                          "margin=3,every=4",
                                          "prompt=beside",
                                          "prompt=beside,margin=6",
                                          "prompt=beside,every=9",
                                          "prompt=at-end",
                                          "prompt=at-end,margin=4,every=3"};
  for (uint32_t p = 0; p < sizeof kPolicies / sizeof *kPolicies; ++p) {
    for (uint32_t t = 0; t < sizeof kTriggers / sizeof *kTriggers; ++t) {
      if (p % 2 != t % 2 && p > 1) continue; /* half of them */
      char text[200];
      snprintf(text, sizeof text, "%s%s%s", kPolicies[p],
               *kTriggers[t] == 0 ? "" : ",", kTriggers[t]);
      Run(text, 1 + p * 16 + t);
    }
  }
}

/* Keeps only the last tokens, cut at every step or in steps, and a context shift. */
Test(decode, windows_slide) {
  static const char* const kTexts[] = {
      "streaming-llm:budget=32,sink=0",
      "streaming-llm:budget=32,sink=0,margin=9",
      "streaming-llm:sink=1,recent=31,margin=30"};
  for (uint32_t i = 0; i < sizeof kTexts / sizeof *kTexts; ++i) {
    Run(kTexts[i], 200 + i);
  }
}

/* A pinned prompt lies within the budget or beside it. */
Test(decode, pinned_prompts_stay) {
  static const char* const kTexts[] = {
      "streaming-llm:budget=60,sink=4,prompt=pinned",
      "streaming-llm:budget=60,sink=4,prompt=pinned,margin=9",
      "streaming-llm:budget=20,sink=4,prompt=pinned-beside",
      "streaming-llm:budget=20,sink=4,prompt=pinned-beside,every=7",
      "knorm:sink=0,budget=60,prompt=pinned,every=3",
      "knorm:sink=0,budget=20,prompt=pinned-beside,margin=4",
      "tova:budget=48,prompt=pinned",
      "snapkv:budget=20,sink=0,window=4,pool=none,prompt=pinned-beside"};
  for (uint32_t i = 0; i < sizeof kTexts / sizeof *kTexts; ++i) {
    Run(kTexts[i], 300 + i);
  }
}

/* Every slot of the prompt keeps its token. Only later tokens go. */
Test(decode, of_pinned_prompts_every_token_stays) {
  test_model* m = Model("knorm:sink=0,budget=50,prompt=pinned", 5);
  test_model_step(m, 40);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  for (uint32_t step = 0; step < 300; ++step) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < 2; ++h) {
      int32_t positions[kMostSlots];
      EXPECT(test_model_stored_of(m, l, h) == 50, "layer %u, head %u", l, h);
      test_model_positions(m, l, h, positions);
      for (int32_t i = 0; i < 40; ++i) EXPECT(positions[i] == i, "slot %d", i);
    }
  }
  test_model_check(m, "pinned");
  test_model_destroy(m);
}

/* The layers held different numbers of tokens when the prompt ended. */
Test(decode, layers_have_prompts_of_their_own) {
  test_model* m = Model(
      "streaming-llm:budget=20,sink=2,split=geometric,alpha=0.7,prompt=beside",
      6);
  test_model_step(m, 30);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  for (uint32_t step = 0; step < 200; ++step) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  uint32_t budgets[kLayers];
  EXPECT_OK(kvevict_policy_layer_budgets(m->policy_handle, kMostSlots, budgets,
                                         kLayers));
  for (uint32_t l = 0; l < kLayers; ++l) {
    EXPECT(test_model_stored(m, l) == budgets[l] + 30, "layer %u holds %u", l,
           test_model_stored(m, l));
  }
  test_model_destroy(m);
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

/* A ratio of few tokens has no room for what must stay. */
Test(decode, ratios_work_when_they_have_room) {
  static const char* const kTexts[] = {
      "streaming-llm:budget=0.5,sink=4,prompt=beside",
      "custom:budget=0.5,sink=4,recent=3,prompt=pinned-beside",
      "snapkv:budget=0.5,sink=2,window=8,prompt=beside"};
  for (int i = 0; i < 3; ++i) {
    test_model* m = Model(kTexts[i], 11);
    const bool custom = m->policy.kind == ORACLE_CUSTOM;
    test_model_step(m, 60);
    EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
    for (uint32_t behind = 1; behind <= 60; ++behind) {
      test_model_step(m, 1);
      if (!custom || behind < 14) EXPECT_OK(test_model_evict(m, NULL, NULL));
      if (custom) continue;
      const uint32_t least = i == 0 ? 4 : 10;
      const uint32_t budget = behind / 2;
      const uint32_t stored = test_model_stored(m, 0);
      EXPECT(budget > least ? stored == 60 + budget : stored == 60 + behind,
             "%s: %u behind the prompt, %u stored", kTexts[i], behind, stored);
    }
    test_model_check(m, kTexts[i]);
    test_model_destroy(m);
  }
  test_model* m = Model("streaming-llm:budget=0.5,sink=4,margin=32", 12);
  for (uint32_t n = 1; n < 200; ++n) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    EXPECT(test_model_stored(m, 0) <= n / 2 + 32, "%u of %u",
           test_model_stored(m, 0), n);
  }
  test_model_destroy(m);
  m = Model("snapkv:budget=64,window=8,heads=threshold,threshold=0.01", 13);
  for (uint32_t n = 0; n < 30; ++n) {
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    test_model_step(m, 1);
  }
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
