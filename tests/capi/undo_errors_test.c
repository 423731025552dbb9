/* An undo takes back the last eviction, or is refused before a byte moves. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/edit.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/undo.h"

Test(undo_errors, is_of_the_last_eviction_and_once) {
  test_model* m = test_undo_model("knorm:budget=20,margin=2", 60);
  test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_INVALID(test_undo(m, undo), "nothing to undo");
  /* Evictions that lose nothing do not count. */
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  test_model_step(m, 1);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  EXPECT_OK(test_undo(m, undo));
  EXPECT(test_model_stored(m, 0) == 61, "%u slots", test_model_stored(m, 0));
  test_model_check(m, "undone");
  EXPECT_INVALID(test_undo(m, undo), "nothing to undo");
  /* Then the last eviction is one without undo memory. */
  test_lent_return(undo);
  undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  test_model_step(m, 5);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_INVALID(test_undo(m, undo), "nothing to undo");
  /* A reset, a load, and a trim to before the eviction. */
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    m->n_seen = 0;
    test_model_step(m, 60);
    EXPECT_OK(test_evict_lending(m, undo, NULL));
    if (i == 0) EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    uint8_t saved[4096];
    size_t n = 0;
    if (i == 1) {
      EXPECT_OK(kvevict_sequence_save(m->sequence, saved, sizeof saved, &n));
      EXPECT_OK(kvevict_sequence_load(m->sequence, saved, n, NULL));
    }
    if (i == 2) EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 0, NULL));
    EXPECT_INVALID(test_undo(m, undo), "nothing to undo");
  }
  test_lent_return(undo);
  test_model_destroy(m);
}

Test(undo_errors, forks_have_nothing_to_undo) {
  test_model* m = test_undo_model("knorm:budget=20", 60);
  test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  kvevict_sequence* fork = NULL;
  EXPECT_OK(kvevict_sequence_fork(m->sequence, NULL, &fork, NULL));
  EXPECT_INVALID(
      kvevict_sequence_undo(fork, m->views, 3, undo.memory, undo.n_bytes, NULL),
      "nothing to undo");
  EXPECT_OK(test_undo(m, undo));
  test_model_check(m, "the one that was forked");
  kvevict_sequence_destroy(fork);
  test_lent_return(undo);
  test_model_destroy(m);
}

/* Damaged bytes are an error, and so is memory that was used for something else. */
Test(undo_errors, memory_is_as_the_eviction_left_it) {
  for (int by_scores = 0; by_scores < 2; ++by_scores) {
    test_model* m = test_undo_model(
        by_scores ? "knorm:budget=20,heads=adaptive" : "knorm:budget=20", 60);
    test_lent undo = test_lend(test_undo_bytes(m));
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.undo = m->workspace;
    options.undo_bytes = undo.n_bytes;
    EXPECT_INVALID(test_model_evict(m, &options, NULL),
                   "overlaps the workspace");
    EXPECT_OK(test_evict_lending(m, undo, NULL));
    uint8_t* copy = malloc(undo.n_bytes);
    memcpy(copy, undo.memory, undo.n_bytes);
    memset(undo.memory, 0xff, undo.n_bytes);
    EXPECT_INVALID(test_undo(m, undo), "not as the eviction left it");
    memset(undo.memory, 0, undo.n_bytes);
    EXPECT_INVALID(test_undo(m, undo), "not as the eviction left it");
    test_model_check(m, "damaged");
    memcpy(undo.memory, copy, undo.n_bytes);
    EXPECT_OK(test_undo(m, undo));
    test_model_check(m, "whole");
    free(copy);
    test_lent_return(undo);
    test_model_destroy(m);
  }
}

/* A report of an eviction that was taken back would be wrong. */
Test(undo_errors, empties_the_report) {
  test_model* m = test_undo_model("knorm:budget=20", 60);
  test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  EXPECT_OK(test_undo(m, undo));
  kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
  EXPECT_OK(kvevict_sequence_report(m->sequence, &report, NULL, 0));
  cr_expect_eq(report.evicted, 0);
  cr_expect_eq(report.tokens_before, 0);
  test_lent_return(undo);
  test_model_destroy(m);
}

Test(undo_errors, what_changes_rows_that_stay_is_refused) {
  static const char* const kPolicies[] = {
      "knorm:budget=20,merge=values",
      "streaming-llm:budget=20,sink=3,rotate=yes",
      "streaming-llm:budget=20,sink=3,reference=4,fit=values",
      "streaming-llm:budget=20,sink=3,reference=4,fit=bias-values"};
  static const char* const kWords[] = {"merges", "rotates", "fit=values",
                                       "fit=bias-values"};
  float inv_freq[8] = {1.0f};
  /* 10 tokens are within the budget, so nothing would go. */
  for (uint32_t i = 0; i < 8; ++i) {
    kvevict_layer_geometry layer = test_layer(4, 2, 16, 8);
    kvevict_geometry geometry = test_geometry(3, 100, &layer);
    geometry.rope_inv_freq = inv_freq;
    geometry.rope_inv_freq_len = 8;
    test_plan* plan = test_plan_create(kPolicies[i / 2], &geometry,
                                       KVEVICT_OPERATION_EVICT, 1);
    test_model* m = test_undo_model("knorm:budget=20", 60); /* has the caches */
    kvevict_sequence* sequence = NULL;
    EXPECT_OK(kvevict_sequence_create(plan->plan, &sequence));
    EXPECT_OK(kvevict_sequence_append(sequence, i % 2 ? 10 : 60, NULL));
    size_t n_bytes = 5;
    test_lent undo = test_lend(1 << 16);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.undo = undo.memory;
    options.undo_bytes = undo.n_bytes;
    const char* const word = kWords[i / 2];
    EXPECT_FAILS(kvevict_sequence_undo_bytes(sequence, m->views, 3, &n_bytes),
                 KVEVICT_ERROR_UNSUPPORTED, "undo", word);
    EXPECT_FAILS(
        kvevict_sequence_evict(sequence, m->views, 3, &options, plan->workspace,
                               plan->workspace_bytes, NULL),
        KVEVICT_ERROR_UNSUPPORTED, "undo", word);
    test_model_check(m, "refused");
    test_lent_return(undo);
    kvevict_sequence_destroy(sequence);
    test_plan_destroy(plan);
    test_model_destroy(m);
  }
}

Test(undo_errors, arguments_are_checked_before_a_byte_moves) {
  test_model* m = test_undo_model("knorm:budget=20", 60);
  size_t n_bytes = 0;
  EXPECT_INVALID(kvevict_sequence_undo_bytes(NULL, m->views, 3, &n_bytes),
                 "sequence");
  EXPECT_INVALID(kvevict_sequence_undo_bytes(m->sequence, NULL, 3, &n_bytes),
                 "views");
  EXPECT_INVALID(kvevict_sequence_undo_bytes(m->sequence, m->views, 3, NULL),
                 "out_bytes");
  test_lent undo = test_lend(test_undo_bytes(m));
  const test_lent none = {NULL, 5};
  EXPECT_INVALID(test_evict_lending(m, none, NULL), "undo is NULL",
                 "undo_bytes is 5");
  const test_lent less = {undo.memory, undo.n_bytes - 1};
  char text[64];
  snprintf(text, sizeof text, "undo_bytes %zu < %zu", less.n_bytes,
           undo.n_bytes);
  EXPECT_INVALID(test_evict_lending(m, less, NULL), text);
  const test_lent odd = {undo.memory + 4, undo.n_bytes};
  EXPECT_INVALID(test_evict_lending(m, odd, NULL), "undo", "64-byte aligned");
  /* The memory lies in a cache, on rows that would come back. */
  for (uint32_t l = 0; l < 3; ++l) {
    const uint64_t within = (m->views[l].v.data + 700) / 64 * 64;
    char overlap[32];
    snprintf(overlap, sizeof overlap, "overlaps views[%u]", l);
    EXPECT_INVALID(test_evict_lending(
                       m, (test_lent){(uint8_t*)within, undo.n_bytes}, NULL),
                   "undo", overlap);
  }
  EXPECT(test_is_filled(undo.memory, undo.n_bytes), "rows were saved");
  EXPECT(test_model_stored(m, 0) == 60, "tokens went");
  EXPECT_OK(test_evict_lending(m, undo, NULL));

  EXPECT_INVALID(
      kvevict_sequence_undo(NULL, m->views, 3, undo.memory, undo.n_bytes, NULL),
      "sequence");
  EXPECT_INVALID(test_undo(m, (test_lent){NULL, undo.n_bytes}), "undo is NULL");
  EXPECT_INVALID(test_undo(m, less), text);
  EXPECT_INVALID(test_undo(m, odd), "64-byte aligned");
  m->views[1].k.head_dim -= 1;
  EXPECT_INVALID(test_undo(m, undo), "views[1]", "head_dim");
  m->views[1].k.head_dim += 1;
  /* Rows that come back and rows appended since both need slots. */
  test_model_step(m, 50);
  EXPECT_INVALID(test_undo(m, undo), "layer 0: 110 slots", "max_tokens 100");
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 100, NULL));
  m->n_seen = 100;
  EXPECT_OK(test_undo(m, undo));
  EXPECT(test_model_stored(m, 0) == 100, "%u", test_model_stored(m, 0));
  test_model_check(m, "after all that");
  test_lent_return(undo);
  test_model_destroy(m);
}

Test(undo_errors, an_eviction_that_does_nothing_needs_no_memory) {
  test_model* m = test_undo_model("knorm:budget=70", 60);
  EXPECT(test_undo_bytes(m) == 0, "%zu bytes", test_undo_bytes(m));
  uint8_t one = 0;
  EXPECT_OK(test_evict_lending(m, (test_lent){&one, 0}, NULL));
  EXPECT_INVALID(test_undo(m, (test_lent){&one, 1}), "nothing to undo");
  test_model_destroy(m);
  m = test_undo_model("none", 60);
  EXPECT(test_undo_bytes(m) == 0, "%zu bytes", test_undo_bytes(m));
  EXPECT_INVALID(test_undo(m, (test_lent){&one, 1}), "nothing to undo");
  test_model_destroy(m);
}
