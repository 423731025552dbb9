/* Sums that a sequence cannot add up, or cannot score by. */
#include <string.h>

#include "kvevict/batch.h"
#include "tests/capi/support/attention.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/undo.h"

enum { kMostSlots = 100 };

static test_model* Model(const char* policy) {
  return test_model_of(policy, 3);
}

static test_attention Attention(uint32_t n_rows, uint32_t n_slots) {
  test_random random = {5};
  static test_attention a;
  test_attention_draw(&a, n_rows, n_slots, &random);
  return a;
}

static kvevict_status Show(test_model* m, uint32_t n_rows, uint32_t first) {
  const test_attention a = Attention(2, kMostSlots);
  kvevict_status status = KVEVICT_OK;
  for (uint32_t l = 0; status == KVEVICT_OK && l < 2; ++l) {
    status = test_attention_observe(m->sequence, l, &a, n_rows, first);
  }
  return status;
}

Test(sums, of_rows_that_do_not_follow_are_refused) {
  test_model* m = Model("h2o:budget=10,recent=4");
  EXPECT_OK(Show(m, 10, 0));
  test_model_append(m, 10);
  EXPECT_INVALID(Show(m, 1, 11), "layer 0", "[0, 10)", "from 11 on");
  EXPECT_INVALID(Show(m, 1, 9), "[0, 10)", "from 9 on");
  EXPECT_INVALID(Show(m, 91, 10), "layer 0", "101 slots > max_tokens 100");
  EXPECT_INVALID(Show(m, INT32_MAX, 10), "n_rows");
  EXPECT_OK(Show(m, 1, KVEVICT_POSITION_NEXT));
  EXPECT_OK(Show(m, 0, 77)); /* does nothing */
  test_model_append(m, 3);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0", "[0, 11)",
                 "13 tokens");
  EXPECT_OK(Show(m, 2, 11));
  test_model_append(m, 20);
  EXPECT_OK(Show(m, 20, 13));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* The sums go on while a row of them is left, then begin anew. */
Test(sums, are_forgotten_by_a_trim_to_their_first_row) {
  for (uint32_t to = 8; to <= 12; ++to) {
    test_model* m = Model("h2o:budget=9,recent=4");
    test_model_append(m, 10);
    EXPECT_OK(Show(m, 5, 10));
    test_model_append(m, 5);
    EXPECT_OK(kvevict_sequence_trim_to(m->sequence, to, NULL));
    m->n_seen = to;
    test_model_append(m, 2);
    if (to > 10) {
      EXPECT_INVALID(Show(m, 1, to + 1), "from", "do not follow");
      EXPECT_OK(Show(m, 2, to));
    } else {
      EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                     "attention_sums");
      EXPECT_OK(Show(m, 1, to + 1));
    }
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    EXPECT(test_model_stored(m, 0) == 9, "%u", test_model_stored(m, 0));
    test_model_destroy(m);
  }
}

/* Nobody observed rows between these sums and those since. */
Test(sums, of_single_calls_before_an_undo_must_go_on_since) {
  test_model* m = Model(
      "h2o:budget=20,recent=4,scope=layer,sums=layer,rows=sum,sum_last=3");
  EXPECT_OK(Show(m, 30, 0));
  test_model_append(m, 30);
  const test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  test_lent_check(undo, "evicted");
  EXPECT_OK(Show(m, 2, 31));
  test_model_append(m, 3);
  EXPECT_OK(test_undo(m, undo));
  EXPECT(test_model_stored(m, 0) == 33, "%u", test_model_stored(m, 0));
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 31, NULL));
  m->n_seen = 31;
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0", "attention_sums");
  EXPECT_OK(Show(m, 1, 31));
  test_model_append(m, 1);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT(test_model_stored(m, 0) == 20, "%u", test_model_stored(m, 0));
  test_model_check(m, "evicted again");
  test_lent_return(undo);
  test_model_destroy(m);
}

/* Slots would shift under what was observed for them. */
Test(sums, of_tokens_to_come_must_be_appended_before_an_undo) {
  test_model* m = Model("h2o:budget=10,recent=4");
  EXPECT_OK(Show(m, 20, 0));
  test_model_append(m, 20);
  const test_lent undo = test_lend(test_undo_bytes(m));
  EXPECT_OK(test_evict_lending(m, undo, NULL));
  EXPECT_OK(Show(m, 2, 20));
  EXPECT_INVALID(test_undo(m, undo), "layer 0", "[0, 22)", "20 tokens");
  test_model_append(m, 2);
  EXPECT_OK(test_undo(m, undo));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_lent_return(undo);
  test_model_destroy(m);
}

Test(sums, that_are_missing_are_named) {
  test_model* m = Model("h2o:budget=20,recent=4");
  test_model_append(m, 30);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "attention_sums is NULL", "queries are NULL",
                 "no attention_sums were observed");
  EXPECT_OK(Show(m, 5, 25));
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  EXPECT_INVALID(Show(m, 1, 30), "no query memory",
                 "kvevict_sequence_begin_observing");
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "attention_sums is NULL");
  EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, NULL, 0));
  EXPECT_INVALID(kvevict_sequence_begin_observing(m->sequence, NULL, 0),
                 "query memory already");
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "attention_sums is NULL");
  /* Queries alone have nothing to add up. */
  test_model_observe(m, 20, 10);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "attention_sums is NULL");
  EXPECT_OK(Show(m, 5, 25));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sums, of_too_few_rows_or_slots_are_refused) {
  test_model* m = Model("h2o:budget=20,recent=4,sums=query");
  EXPECT_INVALID(Show(m, 1, 0), "layer 0", "n_sum_heads 2 < 4");
  test_attention a = Attention(3, kMostSlots);
  EXPECT_INVALID(test_attention_observe(m->sequence, 1, &a, 1, 0), "layer 1",
                 "n_sum_heads 3", "n_q_heads 4", "n_kv_heads 2");
  a = Attention(1, kMostSlots);
  EXPECT_INVALID(test_attention_observe(m->sequence, 0, &a, 1, 0),
                 "n_sum_heads 1", "scope layer");
  test_model_destroy(m);
  m = Model("h2o:budget=20,recent=4");
  a = Attention(2, kMostSlots);
  kvevict_plane plane;
  kvevict_signal_inputs inputs = test_attention_inputs(&a, &plane);
  kvevict_observation shown = {sizeof shown, 0, &inputs};
  plane.data += 2;
  EXPECT_INVALID(kvevict_sequence_observe(m->sequence, &shown, 1, 1, 0, NULL),
                 "attention_sums.data", "aligned to 4");
  plane.data -= 2;
  plane.head_stride_bytes = 4 * 7;
  EXPECT_INVALID(kvevict_sequence_observe(m->sequence, &shown, 1, 8, 0, NULL),
                 "attention_sums.head_stride_bytes 28", "at least 32");
  plane.data = 0;
  EXPECT_INVALID(kvevict_sequence_observe(m->sequence, &shown, 1, 1, 0, NULL),
                 "attention_sums");
  inputs.attention_sums = NULL;
  EXPECT_INVALID(kvevict_sequence_observe(m->sequence, &shown, 1, 1, 0, NULL),
                 "none of queries, row_lse, attention_sums and scores");
  test_model_destroy(m);
}

/* The eviction goes by the caller's sums, and one step was not observed. */
Test(sums, are_forgotten_where_a_layer_loses_tokens_and_they_lack_rows) {
  test_model* m = Model("h2o:budget=20,recent=4");
  EXPECT_OK(Show(m, 10, 0));
  test_model_append(m, 40);
  const test_attention a = Attention(2, kMostSlots);
  kvevict_plane plane;
  const kvevict_signal_inputs both[2] = {test_attention_inputs(&a, &plane),
                                         test_attention_inputs(&a, &plane)};
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = both;
  options.inputs_len = 2;
  EXPECT_OK(test_model_evict(m, &options, NULL));
  EXPECT_INVALID(Show(m, 3, 36), "up to position 39", "at 40");
  EXPECT_OK(Show(m, 1, 40));
  test_model_append(m, 1);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sums, are_forgotten_by_a_start_and_a_load) {
  test_model* m = Model("h2o:budget=20,recent=4");
  EXPECT_OK(Show(m, 30, 0));
  test_model_append(m, 30);
  uint8_t saved[4096];
  size_t n_saved = 0;
  EXPECT_OK(kvevict_sequence_save(m->sequence, saved, sizeof saved, &n_saved));
  EXPECT_OK(kvevict_sequence_load(m->sequence, saved, n_saved, NULL));
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "attention_sums is NULL");
  EXPECT_OK(Show(m, 2, 28));
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  EXPECT_OK(kvevict_sequence_start(m->sequence, NULL, 0, 30, NULL));
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "attention_sums is NULL");
  EXPECT_OK(Show(m, 2, 28));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sums, need_as_much_memory_as_the_plan_says) {
  static const struct {
    const char* policy;
    uint32_t n_rows;
  } kCases[] = {{"h2o:budget=20,recent=4", 2},
                {"h2o:budget=20,recent=4,sums=query", 4},
                {"h2o:budget=20,recent=4,sums=layer,scope=layer", 1}};
  for (uint32_t i = 0; i < 3; ++i) {
    test_model* m = Model(kCases[i].policy);
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    EXPECT_OK(
        kvevict_plan_workspace(m->plan, KVEVICT_OPERATION_OBSERVE, 0, &size));
    const size_t n_bytes = (size_t)2 * kCases[i].n_rows * kMostSlots * 4;
    EXPECT(size.least_bytes == n_bytes && size.best_bytes == n_bytes,
           "%s: %zu bytes, not %zu", kCases[i].policy, size.least_bytes,
           n_bytes);
    static _Alignas(256) uint8_t memory[4096];
    EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
    EXPECT_INVALID(
        kvevict_sequence_begin_observing(m->sequence, memory, n_bytes - 1),
        "memory_bytes");
    memset(memory, TEST_GUARD, sizeof memory);
    EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, memory, n_bytes));
    test_attention a = Attention(4, 60);
    for (uint32_t l = 0; l < 2; ++l) {
      EXPECT_OK(test_attention_observe(m->sequence, l, &a, 60, 0));
    }
    test_model_append(m, 60);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    EXPECT(test_is_filled(memory + n_bytes, sizeof memory - n_bytes),
           "%s: beyond the memory", kCases[i].policy);
    test_model_destroy(m);
  }
}
