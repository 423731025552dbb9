/* Evictions taken back: every byte in use is as it was, and the sequence goes on as
 * one that never evicted. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"

static void Ends(const test_model* m, uint32_t layer, uint32_t* ends) {
  for (uint32_t h = 0; h < m->spec.n_kv_heads; ++h) {
    ends[h] = test_model_stored_of(m, layer, h);
  }
}

/* All rows in use have the same bytes as the twin's. */
static void ExpectAsTwin(const test_model* m, const test_model* twin,
                         const char* what) {
  test_expect_same_tokens(m, twin, what);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    uint32_t ends[8];
    Ends(m, l, ends);
    test_expect_same_rows_of_heads(m->live[l], twin->live[l], ends, what);
  }
  test_model_check(m, what);
}

static void StepBoth(test_model* m, test_model* twin, uint32_t n) {
  test_model_step(m, n);
  test_model_step(twin, n);
}

/* Appends n tokens to both and observes what slots receive. Slots that only the
 * twin holds receive nothing. */
static void StepBothWithSums(test_model* m, test_model* twin, uint32_t n,
                             test_random* random) {
  static test_attention shown, of_twin;
  static int32_t held[TEST_ATTENTION_SLOTS], all[TEST_ATTENTION_SLOTS];
  StepBoth(m, twin, n);
  for (uint32_t l = 0; l < m->spec.n_layers; ++l) {
    const uint32_t n_held = test_model_stored(m, l);
    const uint32_t n_all = test_model_stored(twin, l);
    test_attention_draw(&shown, 1, n_held, random);
    test_attention_draw(&of_twin, 1, n_all, random);
    test_model_positions(m, l, 0, held);
    test_model_positions(twin, l, 0, all);
    uint32_t next = 0;
    for (uint32_t t = 0; t < n_all; ++t) {
      const bool is_held = next < n_held && held[next] == all[t];
      of_twin.values[0][t] = is_held ? shown.values[0][next] : 0.0f;
      next += is_held;
    }
    EXPECT(next == n_held, "%s: the twin lacks tokens", m->spec.policy);
    const uint32_t first = m->n_seen - n;
    EXPECT_OK(test_attention_observe(m->sequence, l, &shown, n, first));
    EXPECT_OK(test_attention_observe(twin->sequence, l, &of_twin, n, first));
  }
}

/* Takes back up to n of the last tokens of both. */
static void TrimBoth(test_model* m, test_model* twin, uint32_t n,
                     test_random* random) {
  const uint32_t to = m->n_seen - test_random_between(random, 0, n);
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, to, NULL));
  EXPECT_OK(kvevict_sequence_trim_to(twin->sequence, to, NULL));
  m->n_seen = twin->n_seen = to;
}

/* Later evictions keep the same tokens. Sums of all calls are in lives. */
Test(undo, later_evictions_go_by_the_calls_that_came_back) {
#define CALLS "h2o:budget=20,recent=4,scope=layer,sums=layer,sum_last="
  const char* const kPolicies[] = {
      CALLS "1", CALLS "2,sum_pool=3,raw_first=yes", CALLS "3", CALLS "8"};
#undef CALLS
  test_random random = test_random_start("undo/sums");
  for (size_t i = 0; i < 4 * (sizeof kPolicies / sizeof *kPolicies); ++i) {
    const char* policy = kPolicies[i / 4];
    test_model_spec spec = test_small_model(policy);
    spec.n_layers = 3;
    spec.layout = (test_layout)test_random_below(&random, TEST_N_LAYOUTS);
    spec.max_positions = 400;
    spec.max_tokens = 120;
    const test_random content = {i + 1};
    test_model* m = test_model_create(&spec, content);
    test_model* twin = test_model_create(&spec, content);
    uint32_t n_undone = 0;
    StepBothWithSums(m, twin, 30, &random);
    for (uint32_t round = 0; round < 25; ++round) {
      const bool undoes = test_random_coin(&random);
      test_lent undo = test_lend(test_undo_bytes(m));
      kvevict_evict_report report = {.struct_size = sizeof report};
      EXPECT_OK(test_evict_lending(m, undo, &report));
      test_lent_check(undo, policy);
      if (!undoes || !report.evicted)
        EXPECT_OK(test_model_evict(twin, NULL, NULL));
      const uint32_t n_then = m->n_seen;
      for (uint32_t n = test_random_below(&random, 5); n > 0; --n) {
        StepBothWithSums(m, twin, test_random_between(&random, 1, 3), &random);
      }
      if (test_random_coin(&random)) {
        TrimBoth(m, twin, m->n_seen - n_then, &random);
      }
      StepBothWithSums(m, twin, test_random_between(&random, 1, 3), &random);
      if (undoes && report.evicted) {
        EXPECT_OK(test_undo(m, undo));
        ++n_undone;
      }
      test_lent_return(undo);
      ExpectAsTwin(m, twin, policy);
    }
    EXPECT(n_undone > 3, "%s: undone %u times", policy, n_undone);
    test_model_destroy(twin);
    test_model_destroy(m);
  }
}

/* Scores may find out late that nothing goes. */
Test(undo, outlasts_evictions_that_leave_every_layer_alone) {
  for (uint32_t lends = 0; lends < 2; ++lends) {
    test_model* m =
        test_undo_model("knorm:sink=2,heads=threshold,threshold=-2.5", 40);
    test_model* twin =
        test_undo_model("knorm:sink=2,heads=threshold,threshold=-2.5", 40);
    test_lent undo = test_lend(test_undo_bytes(m));
    test_lent other = test_lend(undo.n_bytes);
    kvevict_evict_report report = {.struct_size = sizeof report};
    EXPECT_OK(test_evict_lending(m, undo, &report));
    EXPECT(report.evicted, "all norms are below 2.5");
    if (lends == 0) {
      EXPECT_OK(test_model_evict(m, NULL, &report));
    } else {
      EXPECT_OK(test_evict_lending(m, other, &report));
    }
    EXPECT(!report.evicted, "the same scores again, and something went");
    EXPECT_OK(test_undo(m, undo));
    ExpectAsTwin(m, twin, "threshold");
    test_lent_return(other);
    test_lent_return(undo);
    test_model_destroy(twin);
    test_model_destroy(m);
  }
}

/* A prompt that ends after the eviction gets its length back. */
Test(undo, prompts_that_ended_since_get_their_tokens_back) {
  test_model* m = test_undo_model("knorm:budget=20,every=2", 50);
  test_model* twin = test_undo_model("knorm:budget=20,every=2", 50);
  test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  for (int i = 0; i < 2; ++i) {
    test_model* each = i == 0 ? m : twin;
    test_model_step(each, 3);
    EXPECT_OK(kvevict_sequence_end_prompt(each->sequence));
    test_model_step(each, 2);
  }
  EXPECT_OK(test_undo(m, undo));
  uint8_t* saved[2];
  size_t n_saved[2];
  for (int i = 0; i < 2; ++i) {
    kvevict_sequence* s = i == 0 ? m->sequence : twin->sequence;
    EXPECT_OK(kvevict_sequence_save(s, NULL, 0, &n_saved[i]));
    saved[i] = malloc(n_saved[i]);
    EXPECT_OK(kvevict_sequence_save(s, saved[i], n_saved[i], &n_saved[i]));
  }
  EXPECT(
      n_saved[0] == n_saved[1] && memcmp(saved[0], saved[1], n_saved[0]) == 0,
      "another state than without the eviction");
  free(saved[0]);
  free(saved[1]);
  test_lent_return(undo);
  test_model_destroy(twin);
  test_model_destroy(m);
}

/* sequence_life_test.c undoes what layers with one cache lost. */
Test(undo, caches_that_layers_share_must_be_shared_still) {
  test_model* m = test_undo_model("knorm:budget=20", 60);
  m->views[2] = m->views[0];
  test_lent undo = test_lend(test_undo_bytes(m));
  /* Two layers hold 40 rows of K, V and a scale in 2 heads, and lists. */
  const size_t rows = 2 * 40 * 2 * (16 * 4 + 8 * 4 + 4);
  EXPECT(undo.n_bytes >= rows && undo.n_bytes < rows + 2 * 600, "%zu bytes",
         undo.n_bytes);
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  m->views[2] = m->live[2]->view;
  EXPECT_INVALID(test_undo(m, undo), "views[2] is the cache of views[2]",
                 "views[0]");
  m->views[2] = m->views[0];
  EXPECT_OK(test_undo(m, undo));
  EXPECT(test_model_stored(m, 2) == 60, "of the layer that shares");
  test_lent_return(undo);
  test_model_destroy(m);
}

Test(undo, companions_that_layers_share_come_back_once) {
  test_model* m = test_undo_model("streaming-llm:budget=20,sink=3", 60);
  m->views[2].companions = m->views[0].companions;
  test_cache* before[3];
  for (int l = 0; l < 3; ++l) before[l] = test_cache_clone(m->live[l]);
  test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  EXPECT_OK(test_undo(m, undo));
  for (int l = 0; l < 3; ++l) {
    test_expect_same_rows(m->live[l], before[l], 60, "shared companions");
    test_cache_destroy(before[l]);
  }
  test_lent_return(undo);
  test_model_destroy(m);
}
