/* One policy evicts the prompt and another one decodes: what goes along to a fork under
 * another plan. sequence_life_test.c has random ones. */
#include <stdio.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/policies.h"

enum { kLayers = 3, kHeads = 2, kSlots = 120, kPrompt = 90 };

static test_model* Model(const char* policy) {
  test_model_spec spec = test_small_model(policy);
  spec.n_layers = kLayers;
  spec.max_tokens = kSlots;
  spec.max_positions = 400;
  return test_model_create(&spec, (test_random){23});
}

/* A prompt that was evicted at its end. */
static test_model* Prompt(const char* policy) {
  test_model* m = Model(policy);
  test_model_step(m, kPrompt);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  return m;
}

/* ---- What is held ---- */

typedef struct tokens {
  uint32_t n[kLayers][kHeads];
  int32_t positions[kLayers][kHeads][kSlots];
} tokens;

static void Read(const test_model* m, tokens* out) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      out->n[l][h] = test_model_stored_of(m, l, h);
      test_model_positions(m, l, h, out->positions[l][h]);
    }
  }
}

static void ExpectSame(const tokens* a, const tokens* b, const char* what) {
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      EXPECT(a->n[l][h] == b->n[l][h] &&
                 memcmp(a->positions[l][h], b->positions[l][h],
                        a->n[l][h] * sizeof(int32_t)) == 0,
             "%s: layer %u, head %u: %u tokens, not the %u expected", what, l,
             h, b->n[l][h], a->n[l][h]);
    }
  }
}

/* ---- Lists ---- */

/* A head that chose its own tokens cannot share a list any more. */
Test(decode_compose, lists_that_differ_are_refused) {
  static const struct {
    const char *prompt, *decode, *why, *how;
  } kRows[] = {
      {"head", "streaming-llm:budget=36", "layer 0: KV heads 0 and 1 hold",
       "head_budgets would work"},
      {"head", "tova:budget=30,scope=layer", "layer 0: KV heads 0 and 1 hold",
       "scope head would work"},
      {"layer", "knorm:budget=33,scope=model",
       "positions of layer 1 are not layer 0's", "scope layer would work"}};
  for (size_t i = 0; i < sizeof kRows / sizeof *kRows; ++i) {
    char prompt[100];
    snprintf(prompt, sizeof prompt, "snapkv:budget=40,window=8,scope=%s",
             kRows[i].prompt);
    test_model* m = Prompt(prompt);
    tokens before, after;
    Read(m, &before);
    EXPECT_INVALID(test_model_go_on(m, kRows[i].decode, NULL, NULL),
                   kRows[i].why, kRows[i].how);
    Read(m, &after);
    ExpectSame(&before, &after, kRows[i].decode);
    test_model_destroy(m);
  }
}

/* With budgets per head, streaming-llm has a list for each head. */
Test(decode_compose, heads_that_chose_apart_may_stream) {
  test_model* m = Prompt("snapkv:budget=40,sink=2,window=8");
  uint32_t budgets[kLayers * kHeads];
  for (int i = 0; i < kLayers * kHeads; ++i) budgets[i] = 36;
  kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
  options.head_budgets = budgets;
  options.head_budgets_len = kLayers * kHeads;
  EXPECT_OK(
      test_model_go_on(m, "streaming-llm:budget=36,sink=4", NULL, &options));
  for (int step = 0; step < 20; ++step) {
    test_model_append(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    int32_t positions[36];
    cr_assert_eq(test_model_stored_of(m, i / kHeads, i % kHeads), 36);
    test_model_positions(m, i / kHeads, i % kHeads, positions);
    EXPECT(positions[35] == kPrompt + 19 && positions[35 - 19] == kPrompt,
           "head %u", i);
  }
  test_model_check(m, "a budget for each head");
  test_model_destroy(m);
}

/* Lists of different lengths live on where lists may differ. */
Test(decode_compose, ragged_heads_stay_ragged) {
  test_model* m = Prompt("snapkv:budget=40,sink=2,window=8,heads=adaptive");
  tokens before, after;
  Read(m, &before);
  uint32_t l = 0;
  while (l < kLayers && before.n[l][0] == before.n[l][1]) ++l;
  cr_assert_lt(l, kLayers, "no layer has heads of different lengths");
  char layer[16], counts[40];
  snprintf(layer, sizeof layer, "layer %u", l);
  snprintf(counts, sizeof counts, "hold %u and %u tokens", before.n[l][0],
           before.n[l][1]);
  EXPECT_INVALID(test_model_go_on(m, "knorm:budget=30", NULL, NULL), layer,
                 "KV heads 0 and 1", counts,
                 "heads that are not equal would work");
  EXPECT_INVALID(test_model_go_on(m, "tova:budget=30,scope=layer", NULL, NULL),
                 "KV heads 0 and 1", "scope head would work");
  EXPECT_OK(test_model_go_on(m, "knorm:budget=30,heads=adaptive", NULL, NULL));
  Read(m, &after);
  ExpectSame(&before, &after, "ragged");
  for (int step = 0; step < 20; ++step) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  for (l = 0; l < kLayers; ++l) {
    EXPECT(test_model_stored_of(m, l, 0) + test_model_stored_of(m, l, 1) == 60,
           "layer %u", l);
  }
  test_model_check(m, "ragged");
  test_model_destroy(m);
}

/* ---- Everything else that goes along ---- */

Test(decode_compose, queries_go_along_to_a_window_as_wide) {
  test_model* m = Prompt("snapkv:budget=40,sink=2,window=8");
  EXPECT_OK(test_model_go_on(m, "r-kv:budget=20,window=8", NULL, NULL));
  EXPECT_OK(test_model_evict(m, NULL, NULL)); /* scores by prompt queries */
  cr_expect_eq(test_model_stored(m, 0), 20);
  EXPECT_OK(test_model_go_on(m, "tova:budget=10,scope=head", NULL, NULL));
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "observed queries");
  test_model_observe(m, m->n_seen - 1, 1);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  cr_expect_eq(test_model_stored(m, 0), 10);
  test_model_check(m, "another window");
  test_model_destroy(m);
}

Test(decode_compose, a_new_window_begins_to_observe) {
  test_model* m = Prompt("snapkv:budget=40,sink=2,window=8");
  kvevict_plan* plan = NULL;
  kvevict_sequence* fork = NULL;
  const kvevict_policy* tova =
      test_policy("tova:budget=10,window=4,scope=head");
  EXPECT_OK(kvevict_plan_create(m->context, &m->geometry, tova, NULL, &plan));
  kvevict_fork_options options = {.struct_size = sizeof options, .plan = plan};
  EXPECT_OK(kvevict_sequence_fork(m->sequence, &options, &fork, NULL));
  const kvevict_plane queries = test_model_queries(m, 0, kPrompt);
  EXPECT_INVALID(test_observe(fork, 0, &queries, 1, kPrompt),
                 "no query memory");
  EXPECT_OK(kvevict_sequence_begin_observing(fork, NULL, 0));
  EXPECT_OK(test_observe(fork, 0, &queries, 1, kPrompt));
  kvevict_sequence_destroy(fork);
  kvevict_plan_destroy(plan);
  test_model_destroy(m);
}

/* A layer's prompt is what it holds when the prompt ends: pinned, or beside the budget. */
Test(decode_compose, the_prompt_is_what_is_left_of_it) {
  test_model* m = Model("snapkv:budget=40,sink=2,window=8,scope=layer");
  test_model_step(m, kPrompt);
  EXPECT_OK(kvevict_sequence_end_prompt(m->sequence));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  for (int step = 0; step < 20; ++step) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  tokens before, after;
  Read(m, &before);
  uint32_t n_prompt[kLayers] = {0};
  for (uint32_t l = 0; l < kLayers; ++l) {
    while (before.positions[l][0][n_prompt[l]] < kPrompt) ++n_prompt[l];
    EXPECT(n_prompt[l] < 40, "layer %u lost nothing of its prompt", l);
  }
  EXPECT_OK(
      test_model_go_on(m, "knorm:budget=12,prompt=pinned-beside", NULL, NULL));
  for (int step = 0; step < 40; ++step) {
    test_model_step(m, 1);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
  }
  Read(m, &after);
  for (uint32_t l = 0; l < kLayers; ++l) {
    EXPECT(after.n[l][0] == n_prompt[l] + 12, "layer %u holds %u, not %u + 12",
           l, after.n[l][0], n_prompt[l]);
    EXPECT(memcmp(after.positions[l], before.positions[l],
                  n_prompt[l] * sizeof(int32_t)) == 0,
           "layer %u lost of its prompt", l);
  }
  test_model_check(m, "pinned");
  test_model_destroy(m);
}

/* Evicting every n tokens goes on counting from the last eviction. */
Test(decode_compose, every_goes_on_from_the_last_eviction) {
  static const struct {
    const char* first;
    uint32_t steps; /* after the fork */
    uint32_t until; /* the step from which the second one evicts */
  } kCases[] = {{"none", 13, 13},
                {"streaming-llm:budget=30,every=4", 13, 16},
                {"streaming-llm:budget=30,every=8", 13, 16},
                {"streaming-llm:budget=30", 17, 24}};
  for (int i = 0; i < 4; ++i) {
    test_model* m = Prompt(kCases[i].first);
    uint32_t step = 0;
    for (; step < kCases[i].steps; ++step) {
      if (step > 0) EXPECT_OK(test_model_evict(m, NULL, NULL));
      test_model_step(m, 1);
    }
    if (i > 0) EXPECT_OK(test_model_evict(m, NULL, NULL));
    EXPECT_OK(
        test_model_go_on(m, "streaming-llm:budget=20,every=8", NULL, NULL));
    for (;; ++step) {
      EXPECT_OK(test_model_evict(m, NULL, NULL));
      if (test_model_stored(m, 0) == 20) break;
      EXPECT(step < 100, "%s: never", kCases[i].first);
      test_model_step(m, 1);
    }
    EXPECT(step == kCases[i].until, "%s: worked after %u steps, not %u",
           kCases[i].first, step, kCases[i].until);
    test_model_destroy(m);
  }
}

Test(decode_compose, a_cache_may_become_larger_or_smaller) {
  test_model* m = Prompt("knorm:budget=40,sink=2,scope=layer");
  kvevict_geometry geometry = m->geometry;
  geometry.max_tokens = 39;
  EXPECT_INVALID(test_model_go_on(m, "tova:budget=30", &geometry, NULL),
                 "layer 0: list 0: 40 slots > max_tokens 39");
  geometry.max_tokens = 40;
  EXPECT_OK(
      test_model_go_on(m, "knorm:budget=30,scope=layer", &geometry, NULL));
  EXPECT_INVALID(kvevict_sequence_append(m->sequence, 1, NULL),
                 "max_tokens 40");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  geometry.max_tokens = 100;
  EXPECT_OK(test_model_go_on(m, "none", &geometry, NULL));
  test_model_step(m, 70);
  test_model_check(m, "larger");
  test_model_destroy(m);
}
