/* The queries of a sequence. sequence_observe_test.c and sequence_evict_test.c
 * have the rest. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

static test_model* Model(void) {
  return test_model_of("snapkv:budget=60,window=8", 1);
}

Test(sequence, reset_forgets_everything_and_allocates_nothing) {
  test_model* m = Model();
  test_model_step(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_step(m, 20);
  const uint32_t n_allocs = m->allocator.n_allocs;
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  cr_assert_eq(m->allocator.n_allocs, n_allocs);
  m->n_seen = 0;
  test_model_check(m, "after reset");
  cr_expect_eq(test_model_stored(m, 0), 0);
  /* Queries are forgotten too: none was observed for these tokens. */
  test_model_append(m, 100);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "observed");
  /* It is like new from here on. */
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  m->n_seen = 0;
  test_model_step(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model* fresh = Model();
  test_model_step(fresh, 100);
  EXPECT_OK(test_model_evict(fresh, NULL, NULL));
  test_expect_same_tokens(m, fresh, "after reset");
  test_model_destroy(fresh);
  test_model_destroy(m);
}

Test(sequence, append_beyond_max_tokens_is_an_error_that_changes_nothing) {
  test_model* m = Model();
  test_model_append(m, 99);
  EXPECT_INVALID(kvevict_sequence_append(m->sequence, 2, NULL), "n_tokens 2",
                 "99", "max_tokens 100");
  EXPECT_INVALID(kvevict_sequence_append(m->sequence, UINT32_MAX, NULL),
                 "n_tokens");
  cr_expect_eq(test_model_stored(m, 0), 99);
  test_model_append(m, 1);
  EXPECT_INVALID(kvevict_sequence_append(m->sequence, 1, NULL),
                 "max_tokens 100");
  test_model_check(m, "full");
  test_model_destroy(m);
}

Test(sequence, logical_length_stops_at_31_bits) {
  test_model_spec spec = test_small_model("streaming-llm:budget=10");
  spec.max_tokens = spec.max_positions = 20;
  test_model* m = test_model_create(&spec, (test_random){1});
  kvevict_geometry geometry = m->geometry;
  geometry.max_tokens = INT32_MAX;
  geometry.n_layers = 1;
  kvevict_plan* plan = NULL;
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_plan_create(m->context, &geometry, m->policy_handle, NULL,
                                &plan));
  EXPECT_OK(kvevict_sequence_create(plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, INT32_MAX, NULL));
  EXPECT_INVALID(kvevict_sequence_append(sequence, 1, NULL), "2147483647");
  uint32_t length = 0;
  EXPECT_OK(kvevict_sequence_logical_length(sequence, &length));
  cr_expect_eq(length, (uint32_t)INT32_MAX);
  kvevict_sequence_destroy(sequence);
  kvevict_plan_destroy(plan);
  test_model_destroy(m);
}

Test(sequence, create_refuses_null) {
  test_model* m = Model();
  kvevict_sequence* sequence;
  GUARD(sequence);
  EXPECT_INVALID(kvevict_sequence_create(NULL, &sequence), "plan", "NULL");
  EXPECT_UNTOUCHED(sequence);
  EXPECT_INVALID(kvevict_sequence_create(m->plan, NULL), "out_sequence",
                 "NULL");
  kvevict_sequence_destroy(NULL);
  test_model_destroy(m);
}

Test(sequence, questions_refuse_null_and_what_is_out_of_range) {
  test_model* m = Model();
  test_model_append(m, 10);
  kvevict_sequence* s = m->sequence;
  uint32_t u;
  int32_t i, positions[10];
  size_t n;
  GUARD(u);
  GUARD(i);
  GUARD(n);
  GUARD(positions);
  EXPECT_INVALID(kvevict_sequence_reset(NULL, NULL), "sequence", "NULL");
  EXPECT_INVALID(kvevict_sequence_append(NULL, 1, NULL), "sequence", "NULL");
  EXPECT_INVALID(kvevict_sequence_stored_length(NULL, 0, 0, &u), "sequence");
  EXPECT_INVALID(kvevict_sequence_stored_length(s, 0, 0, NULL), "out_length");
  EXPECT_INVALID(kvevict_sequence_logical_length(NULL, &u), "sequence");
  EXPECT_INVALID(kvevict_sequence_logical_length(s, NULL), "out_length");
  EXPECT_INVALID(kvevict_sequence_position_of_slot(NULL, 0, 0, 0, &i),
                 "sequence");
  EXPECT_INVALID(kvevict_sequence_position_of_slot(s, 0, 0, 0, NULL),
                 "out_position");
  EXPECT_INVALID(kvevict_sequence_slot_of_position(NULL, 0, 0, 0, &i),
                 "sequence");
  EXPECT_INVALID(kvevict_sequence_slot_of_position(s, 0, 0, 0, NULL),
                 "out_slot");
  EXPECT_INVALID(kvevict_sequence_keep_positions(NULL, 0, 0, positions, 10, &n),
                 "sequence");
  EXPECT_INVALID(kvevict_sequence_keep_positions(s, 0, 0, NULL, 10, &n),
                 "positions");
  EXPECT_INVALID(kvevict_sequence_keep_positions(s, 0, 0, positions, 10, NULL),
                 "out_positions_len");
  EXPECT_INVALID(kvevict_sequence_stored_length(s, 2, 0, &u), "layer 2",
                 "n_layers 2");
  EXPECT_INVALID(kvevict_sequence_stored_length(s, 0, 2, &u), "kv_head 2",
                 "n_kv_heads 2");
  EXPECT_INVALID(kvevict_sequence_position_of_slot(s, 2, 0, 0, &i), "layer 2");
  EXPECT_INVALID(kvevict_sequence_position_of_slot(s, 0, 2, 0, &i), "kv_head 2",
                 "n_kv_heads 2");
  EXPECT_INVALID(kvevict_sequence_position_of_slot(s, 0, 0, 10, &i), "slot 10",
                 "10");
  EXPECT_INVALID(kvevict_sequence_slot_of_position(s, 2, 0, 0, &i), "layer 2");
  EXPECT_INVALID(kvevict_sequence_slot_of_position(s, 0, 2, 0, &i),
                 "kv_head 2");
  EXPECT_INVALID(kvevict_sequence_slot_of_position(s, 0, 0, 10, &i),
                 "position 10", "10");
  EXPECT_INVALID(kvevict_sequence_keep_positions(s, 2, 0, positions, 10, &n),
                 "layer 2");
  EXPECT_INVALID(kvevict_sequence_keep_positions(s, 0, 2, positions, 10, &n),
                 "kv_head 2");
  EXPECT_INVALID(kvevict_sequence_keep_positions(s, 0, 0, positions, 9, &n),
                 "positions_capacity 9", "10");
  EXPECT_UNTOUCHED(u);
  EXPECT_UNTOUCHED(i);
  EXPECT_UNTOUCHED(n);
  EXPECT_UNTOUCHED(positions);
  test_model_destroy(m);
}

/* ---- Trim ---- */

Test(sequence, trim_refuses_lengths_it_has_not_reached) {
  test_model* m = Model();
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 0, NULL));
  test_model_append(m, 10);
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 10, NULL));
  EXPECT_INVALID(kvevict_sequence_trim_to(m->sequence, 11, NULL),
                 "new_length 11", "logical length 10");
  EXPECT_INVALID(kvevict_sequence_trim_to(NULL, 0, NULL), "sequence", "NULL");
  cr_expect_eq(test_model_stored(m, 0), 10);
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 0, NULL));
  cr_expect_eq(test_model_stored(m, 0), 0);
  m->n_seen = 0;
  test_model_check(m, "trimmed to nothing");
  test_model_destroy(m);
}
