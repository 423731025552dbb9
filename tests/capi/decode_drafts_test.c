/* Speculative decoding: drafts are observed and appended, and the rejected ones taken back.
 * sequence_life_test.c takes tokens back at random. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/random.h"

enum { kSlots = 160, kPositions = 700 };

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
