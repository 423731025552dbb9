/* Speculative decoding: each step observes and appends drafts, takes the rejected
 * ones back, and evicts. */
#include <stdio.h>
#include <string.h>

#include "kvevict/batch.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/random.h"

enum { kSlots = 160, kPositions = 700, kSteps = 120 };

static test_model_spec Spec(const char* policy, uint32_t draft_tokens) {
  test_model_spec spec = test_small_model(policy);
  spec.max_tokens = kSlots;
  spec.max_positions = kPositions;
  spec.draft_tokens = draft_tokens;
  return spec;
}

/* Observes and appends n tokens that stay and n_rejected that are taken back. The
 * rejected ones have queries of other positions. */
static void Speculate(test_model* m, uint32_t n, uint32_t n_rejected) {
  test_model_step(m, n);
  const uint32_t length = m->n_seen;
  for (uint32_t l = 0; l < m->spec.n_layers && n_rejected > 0; ++l) {
    const kvevict_plane wrong = test_model_queries(m, l, length / 2);
    EXPECT_OK(test_observe(m->sequence, l, &wrong, n_rejected, length));
  }
  test_model_append(m, n_rejected);
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, length, NULL));
  m->n_seen = length;
}

/* The number of steps of 60 that evict. */
static uint32_t CountEvictions(const char* policy, uint32_t n_prompt,
                               uint32_t n_accepted, uint32_t n_rejected) {
  const test_model_spec spec = Spec(policy, n_rejected);
  test_model* m = test_model_create(&spec, (test_random){7});
  uint32_t n = 0;
  test_model_step(m, n_prompt);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  for (uint32_t i = 0; i < 60; ++i) {
    Speculate(m, n_accepted, n_rejected);
    const uint32_t before = test_model_stored(m, 0);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    n += test_model_stored(m, 0) < before;
  }
  test_model_check(m, policy);
  test_model_destroy(m);
  return n;
}

Test(decode_drafts, every_step_evicts_though_drafts_are_rejected) {
  const uint32_t tova = CountEvictions("tova:budget=100", 100, 3, 1);
  EXPECT(tova == 60, "tova: %u of 60", tova);
  const uint32_t snapkv =
      CountEvictions("snapkv:budget=100,window=16,margin=20", 100, 4, 2);
  EXPECT(snapkv == 60 * 4 / 24, "snapkv: %u", snapkv);
}

Test(decode_drafts,
     more_rejected_than_planned_is_an_error_that_names_the_plan) {
  for (uint32_t n_rejected = 1; n_rejected <= 4; ++n_rejected) {
    const test_model_spec spec = Spec("snapkv:budget=40,window=8", 2);
    test_model* m = test_model_create(&spec, (test_random){3});
    test_model_step(m, 60);
    Speculate(m, 1, n_rejected);
    if (n_rejected <= 2) {
      EXPECT_OK(test_model_evict(m, NULL, NULL));
    } else {
      EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                     "more tokens were taken back than draft_tokens 2",
                     "61), but window 8 needs [53, 61)");
      /* Observing the rows again helps without another plan, too. */
      test_model_observe(m, 53, 8);
      EXPECT_OK(test_model_evict(m, NULL, NULL));
    }
    test_model_destroy(m);
  }
}

/* A missing observation is not blamed on drafts. */
Test(decode_drafts, rows_that_were_never_shown_do_not_blame_the_plan) {
  const test_model_spec spec = Spec("snapkv:budget=40,window=8", 0);
  test_model* m = test_model_create(&spec, (test_random){3});
  test_model_append(m, 60);
  test_model_observe(m, 55, 5);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL),
                 "layer 0: observed queries are of positions [55, 60)");
  test_model_destroy(m);
}

Test(decode_drafts, rows_go_along_to_plans_of_as_many_drafts) {
  for (uint32_t draft_tokens = 1; draft_tokens <= 3; ++draft_tokens) {
    const test_model_spec spec = Spec("snapkv:budget=40,window=8", 2);
    test_model* m = test_model_create(&spec, (test_random){3});
    kvevict_plan_options options = KVEVICT_PLAN_OPTIONS_INIT;
    options.draft_tokens = draft_tokens;
    test_model_step(m, 60);
    EXPECT_OK(test_model_go_on(m, "snapkv:budget=30,window=8", NULL, &options));
    if (draft_tokens != 2) {
      EXPECT_INVALID(test_model_evict(m, NULL, NULL),
                     "layer 0: observed queries are of positions [0, 0)");
      test_model_observe(m, 52, 8);
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    test_model_check(m, "after a fork");
    test_model_destroy(m);
  }
}

/* ---- Against the same tokens without drafts ---- */

static void SaveAndLoad(test_model* m) {
  uint8_t data[1 << 14];
  size_t n = 0;
  EXPECT_OK(kvevict_sequence_save(m->sequence, data, sizeof data, &n));
  kvevict_sequence_destroy(m->sequence);
  EXPECT_OK(kvevict_sequence_create(m->plan, &m->sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, NULL, 0));
  EXPECT_OK(kvevict_sequence_load(m->sequence, data, n, NULL));
}

static void GoOnByAFork(test_model* m) {
  kvevict_sequence* fork = NULL;
  EXPECT_OK(kvevict_sequence_fork(m->sequence, NULL, &fork, NULL));
  kvevict_sequence_destroy(m->sequence);
  m->sequence = fork;
}

typedef struct tally {
  uint32_t n_evictions, n_rejections, n_waiting;
} tally;

/* Both evict, or neither can yet: a window must be observed again after a load. */
static void EvictBoth(test_model* a, test_model* b, const char* what,
                      tally* count) {
  const uint32_t before = test_model_stored(a, 0);
  const kvevict_status status = test_model_evict(b, NULL, NULL);
  EXPECT(test_model_evict(a, NULL, NULL) == status,
         "%s: at %u tokens %s, without drafts status %d", what, a->n_seen,
         kvevict_last_error_message(), status);
  count->n_waiting += status != KVEVICT_OK;
  count->n_evictions += test_model_stored(a, 0) < before;
  test_expect_same_tokens(a, b, what);
}

static void Compare(const char* policy, uint64_t seed, tally* count) {
  test_random random = {seed};
  const uint32_t draft_tokens = 1 + test_random_below(&random, 6);
  char what[200];
  snprintf(what, sizeof what, "%s, seed %u, draft_tokens %u", policy,
           (uint32_t)seed, draft_tokens);
  const test_model_spec drafts = Spec(policy, draft_tokens);
  const test_model_spec plain = Spec(policy, 0);
  test_model* a = test_model_create(&drafts, (test_random){seed});
  test_model* b = test_model_create(&plain, (test_random){seed});
  const uint32_t n_prompt = 20 + test_random_below(&random, 100);
  test_model_step(a, n_prompt);
  test_model_step(b, n_prompt);
  EvictBoth(a, b, what, count);
  EXPECT_OK(kvevict_sequence_end_prompt(a->sequence));
  EXPECT_OK(kvevict_sequence_end_prompt(b->sequence));
  for (uint32_t i = 0; i < kSteps; ++i) {
    switch (test_random_below(&random, 30)) {
      case 0:
        SaveAndLoad(a);
        SaveAndLoad(b);
        if (test_random_coin(&random)) break;
        test_model_observe(a, a->n_seen - 16, 16);
        test_model_observe(b, b->n_seen - 16, 16);
        break;
      case 1:
        GoOnByAFork(a);
        break;
    }
    const uint32_t n = 1 + test_random_below(&random, 4);
    const uint32_t n_rejected = test_random_below(&random, draft_tokens + 1);
    Speculate(a, n, n_rejected);
    test_model_step(b, n);
    count->n_rejections += n_rejected > 0;
    if (test_model_stored(a, 0) + 24 < kSlots &&
        test_random_below(&random, 4) == 0) {
      continue;
    }
    EvictBoth(a, b, what, count);
  }
  test_model_check(a, what);
  test_model_destroy(a);
  test_model_destroy(b);
}

Test(decode_drafts, keep_what_is_kept_without_drafts) {
  const char* const kPolicies[] = {
      "tova:budget=50",
      "snapkv:budget=50,window=8",
      "snapkv:budget=50,window=16,margin=9",
      "snapkv:budget=60,window=5,every=7,scope=layer",
      "pyramidkv:budget=60,window=8,beta=4",
      "r-kv:budget=50,window=8",
      "cake:budget=50,window=8",
      "snapkv:budget=50,window=8,heads=adaptive"};
  tally count = {0, 0, 0};
  for (size_t p = 0; p < sizeof kPolicies / sizeof *kPolicies; ++p) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      Compare(kPolicies[p], seed * 100 + p, &count);
    }
  }
  EXPECT(count.n_evictions > 2000 && count.n_rejections > 4000 &&
             count.n_waiting > 20,
         "%u evictions, %u steps with rejections, %u too early",
         count.n_evictions, count.n_rejections, count.n_waiting);
}
