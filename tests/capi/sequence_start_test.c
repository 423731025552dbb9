/* Starts, forks, and trims into the prefix. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/plan.h"

static test_model* Model(const char* policy) {
  const test_model_spec spec = test_small_model(policy);
  return test_model_create(&spec, (test_random){1});
}

Test(sequence_start, the_prefix_refuses_null) {
  test_model* m = Model("none");
  uint32_t length;
  GUARD(length);
  EXPECT_INVALID(kvevict_sequence_exact_prefix(NULL, &length), "sequence");
  EXPECT_UNTOUCHED(length);
  EXPECT_INVALID(kvevict_sequence_exact_prefix(m->sequence, NULL),
                 "out_length");
  test_model_destroy(m);
}

/* ---- Starts ---- */

static kvevict_position_lists List(const int32_t* positions, uint32_t n) {
  kvevict_position_lists list = KVEVICT_POSITION_LISTS_INIT;
  list.n_lists = 1;
  list.positions = positions;
  list.positions_len = list.count = n;
  return list;
}

Test(sequence_start, without_lists_all_hold_all) {
  const char* const policies[] = {"none", "snapkv:budget=60,window=8"};
  for (int i = 0; i < 2; ++i) {
    test_model* m = Model(policies[i]);
    EXPECT_INVALID(kvevict_sequence_start(m->sequence, NULL, 0, 101, NULL),
                   "n_tokens 101", "max_tokens 100");
    EXPECT_INVALID(kvevict_sequence_start(m->sequence, NULL, 2, 10, NULL),
                   "layers is NULL", "2");
    EXPECT_OK(kvevict_sequence_start(m->sequence, NULL, 0, 40, NULL));
    cr_expect_eq(test_exact_prefix(m->sequence), 40);
    cr_expect_eq(test_model_stored(m, 1), 40);
    EXPECT_INVALID(kvevict_sequence_start(m->sequence, NULL, 0, 40, NULL),
                   "holds 40 tokens", "reset");
    EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 3, NULL));
    EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    EXPECT_OK(kvevict_sequence_start(m->sequence, NULL, 0, 100, NULL));
    cr_expect_eq(test_model_stored(m, 0), 100);
    test_model_destroy(m);
  }
}

/* No eviction of the plan would leave these positions: they exceed its budget. */
Test(sequence_start, lists_may_be_longer_than_the_plan_keeps) {
  const char* const policies[] = {"none", "streaming-llm:budget=9,sink=2",
                                  "pyramidkv:budget=20,window=4,alpha=0.2",
                                  "snapkv:budget=9,window=4,scope=model"};
  for (int i = 0; i < 4; ++i) {
    test_model* m = Model(policies[i]);
    int32_t odd[90];
    for (int p = 0; p < 90; ++p) odd[p] = 2 * p + 1;
    const kvevict_position_lists layers[2] = {List(odd, 90), List(odd, 90)};
    EXPECT_OK(kvevict_sequence_start(m->sequence, layers, 2, 185, NULL));
    m->n_seen = 185;
    cr_expect_eq(test_exact_prefix(m->sequence), 0);
    int32_t slot = 0;
    EXPECT_OK(kvevict_sequence_slot_of_position(m->sequence, 1, 0, 57, &slot));
    cr_expect_eq(slot, 28);
    EXPECT_OK(kvevict_sequence_slot_of_position(m->sequence, 1, 0, 184, &slot));
    cr_expect_eq(slot, -1);
    EXPECT_OK(kvevict_sequence_append(m->sequence, 10, NULL));
    EXPECT_INVALID(kvevict_sequence_append(m->sequence, 1, NULL), "100 stored");
    m->n_seen = 195;
    test_model_observe(m, 187, 8);
    EXPECT_OK(test_model_evict(m, NULL, NULL));
    int32_t positions[100];
    test_model_positions(m, 0, 1, positions);
    cr_expect_eq(positions[test_model_stored(m, 0) - 1], 194);
    EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
    EXPECT_OK(kvevict_sequence_start(m->sequence, layers, 2, 185, NULL));
    test_model_destroy(m);
  }
}

/* One layer stays as it was started and another one loses. Both find room. */
Test(sequence_start, layers_left_alone_keep_their_positions_beside_others) {
  test_model* m = Model("snapkv:budget=30,window=4,split=lazy,lazy=0.99");
  int32_t odd[30], all[100];
  for (int p = 0; p < 30; ++p) odd[p] = 2 * p + 40;
  for (int p = 0; p < 100; ++p) all[p] = p < 99 ? p : 100;
  const kvevict_position_lists layers[2] = {List(odd, 30), List(all, 100)};
  EXPECT_OK(kvevict_sequence_start(m->sequence, layers, 2, 102, NULL));
  m->n_seen = 102;
  test_model_observe(m, 98, 4);
  (void)test_model_evict(m, NULL, NULL);
  int32_t positions[100];
  test_model_positions(m, 0, 0, positions);
  cr_expect_eq(memcmp(positions, odd, sizeof odd), 0);
  test_model_destroy(m);
}

/* A call with two layers of a list each. The second one is wrong. */
typedef struct bad_start {
  kvevict_position_lists layers[2];
  int32_t positions[8];
  uint32_t counts[2];
} bad_start;

static void InitStart(bad_start* s) {
  static const int32_t kPositions[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  memcpy(s->positions, kPositions, sizeof kPositions);
  for (int l = 0; l < 2; ++l) {
    s->layers[l] = (kvevict_position_lists)KVEVICT_POSITION_LISTS_INIT;
    s->layers[l].n_lists = 2;
    s->layers[l].positions = s->positions;
    s->layers[l].positions_len = 8;
    s->layers[l].count = 4;
  }
}

Test(sequence_start, bad_lists_are_errors_that_change_nothing) {
  test_model* m = Model("snapkv:budget=60,window=8,scope=head");
  kvevict_sequence* q = m->sequence;
  bad_start s;
#define START(n_tokens) kvevict_sequence_start(q, s.layers, 2, n_tokens, NULL)
#define BAD(change, ...)                   \
  do {                                     \
    InitStart(&s);                         \
    change;                                \
    EXPECT_INVALID(START(8), __VA_ARGS__); \
  } while (0)
  InitStart(&s);
  EXPECT_INVALID(kvevict_sequence_start(NULL, s.layers, 2, 8, NULL),
                 "sequence");
  EXPECT_INVALID(kvevict_sequence_start(q, s.layers, 1, 8, NULL),
                 "layers_len 1", "n_layers 2");
  EXPECT_INVALID(START(7), "layer 0: list 1: positions[3] 7", "n_tokens 7");
  EXPECT_INVALID(START(1u << 31), "n_tokens 2147483648", "2147483647");
  BAD(s.layers[1].n_lists = 0, "layers[1]", "n_lists 0", "2");
  BAD(s.layers[1].n_lists = 3, "layers[1]", "n_lists 3", "2");
  BAD(s.layers[1].reserved = 1, "layers[1]", "reserved 1");
  BAD(s.layers[1].list_stride = 3, "layers[1]", "list_stride 3", "count 4");
  BAD(s.layers[1].positions_len = 7, "layers[1]", "positions_len 7", "8");
  BAD(s.layers[1].list_stride = UINT64_MAX, "layers[1]", "positions_len 8");
  BAD(s.layers[1].positions = NULL, "layers[1]", "positions is NULL");
  BAD(s.layers[1].count = 0, "layer 1: list 0", "no token");
  BAD((s.counts[0] = 4, s.counts[1] = 5, s.layers[1].counts = s.counts),
      "layers[1]", "counts[1] 5", "count 4");
  BAD((s.counts[0] = 4, s.counts[1] = 3, s.layers[1].counts = s.counts),
      "layer 1: list 1", "3 slots", "list 0 has 4", "head_budgets");
  BAD(s.positions[5] = 1, "layer 0: list 1: positions[1] 1", "[2,");
  BAD(s.positions[0] = -1, "layer 0: list 0: positions[0] -1");
  BAD(s.layers[1].struct_size -= 8, "layers[1].struct_size", "layers[0]'s");
#undef BAD
  int32_t many[101];
  for (int p = 0; p < 101; ++p) many[p] = p;
  InitStart(&s);
  s.layers[1].n_lists = 1;
  s.layers[1].positions = many;
  s.layers[1].count = 101;
  s.layers[1].positions_len = 101;
  EXPECT_INVALID(START(101), "layer 1: list 0: 101 slots", "max_tokens 100");
  /* The sequence is still empty. */
  InitStart(&s);
  cr_expect_eq(test_model_stored(m, 0), 0);
  EXPECT_OK(START(8));
  EXPECT_INVALID(START(8), "holds 8 tokens");
#undef START
  test_model_destroy(m);
}

Test(sequence_start, one_list_of_the_model_is_one_list) {
  test_model* m = Model("snapkv:budget=60,window=8,scope=model");
  bad_start s;
  InitStart(&s);
  s.layers[0].n_lists = s.layers[1].n_lists = 1;
  s.layers[1].positions += 4;
  s.layers[1].positions_len -= 4;
  EXPECT_INVALID(kvevict_sequence_start(m->sequence, s.layers, 2, 8, NULL),
                 "scope model", "layer 1", "layer 0");
  s.layers[1].count = 3;
  EXPECT_INVALID(kvevict_sequence_start(m->sequence, s.layers, 2, 8, NULL),
                 "scope model");
  s.layers[1] = s.layers[0];
  EXPECT_OK(kvevict_sequence_start(m->sequence, s.layers, 2, 8, NULL));
  test_model_destroy(m);
}

/* ---- Forks ---- */

Test(sequence_start, a_fork_has_the_queries_in_memory_that_is_lent) {
  test_model* m = Model("snapkv:budget=60,window=8");
  const kvevict_workspace size =
      test_workspace(m->plan, KVEVICT_OPERATION_OBSERVE, 0);
  uint8_t* lent = aligned_alloc(64, (size.best_bytes + 63) / 64 * 64);
  test_model_step(m, 100);
  kvevict_sequence* fork = NULL;
  kvevict_fork_options options = KVEVICT_FORK_OPTIONS_INIT;
  options.memory_bytes = 8;
  EXPECT_INVALID(kvevict_sequence_fork(m->sequence, &options, &fork, NULL),
                 "memory is NULL", "8");
  options.memory = lent;
  EXPECT_INVALID(kvevict_sequence_fork(m->sequence, &options, &fork, NULL),
                 "memory_bytes 8");
  EXPECT_INVALID(kvevict_sequence_fork(NULL, NULL, &fork, NULL), "sequence");
  EXPECT_INVALID(kvevict_sequence_fork(m->sequence, NULL, NULL, NULL),
                 "out_sequence");
  cr_expect_null(fork);
  options.memory_bytes = size.best_bytes;
  EXPECT_OK(kvevict_sequence_fork(m->sequence, &options, &fork, NULL));
  EXPECT_INVALID(kvevict_sequence_begin_observing(fork, NULL, 0), "already");
  /* The rows are its own: the source's are dropped. */
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  test_model copy = *m;
  copy.sequence = fork;
  EXPECT_OK(test_model_evict(&copy, NULL, NULL));
  cr_expect_eq(test_model_stored(&copy, 1), 60);
  cr_expect_eq(test_model_stored(m, 1), 100);
  kvevict_sequence* blind = NULL;
  EXPECT_OK(kvevict_sequence_fork(m->sequence, NULL, &blind, NULL));
  EXPECT_OK(kvevict_sequence_begin_observing(blind, NULL, 0));
  kvevict_sequence_destroy(blind);
  kvevict_sequence_destroy(fork);
  free(lent);
  test_model_destroy(m);
}

Test(sequence_start, a_fork_has_no_report_and_outlives_the_first) {
  test_model* m = Model("streaming-llm:budget=60");
  test_model_step(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  kvevict_sequence* fork = NULL;
  EXPECT_OK(kvevict_sequence_fork(m->sequence, NULL, &fork, NULL));
  kvevict_evict_report report = {.struct_size = sizeof report};
  EXPECT_OK(kvevict_sequence_report(fork, &report, NULL, 0));
  cr_expect_eq(report.tokens_before, 0);
  kvevict_sequence_destroy(m->sequence);
  m->sequence = fork;
  test_model_step(m, 20);
  test_model_check(m, "after the first one is gone");
  test_model_destroy(m);
}

/* Whichever allocation fails, nothing leaks and the sequence is as before. */
Test(sequence_start, without_memory_nothing_changes) {
  test_model* m = Model("snapkv:budget=60,window=8,scope=layer");
  test_model* full = Model("none");
  test_model_step(m, 90);
  int32_t gaps[45];
  for (int p = 0; p < 45; ++p) gaps[p] = 2 * p;
  const kvevict_position_lists layers[2] = {List(gaps, 45), List(gaps, 45)};
  kvevict_sequence* first = NULL; /* the context keeps its query memory */
  EXPECT_OK(kvevict_sequence_fork(m->sequence, NULL, &first, NULL));
  kvevict_sequence_destroy(first);
  const uint32_t n_live = m->allocator.n_live;
  const uint32_t n_live_full = full->allocator.n_live;
  for (int call = 0; call < 3; ++call) {
    uint32_t n_failed = 0;
    for (;; ++n_failed) {
      kvevict_sequence* made = NULL;
      kvevict_status status;
      m->allocator.fail_at = m->allocator.n_allocs + 1 + n_failed;
      full->allocator.fail_at = full->allocator.n_allocs + 1 + n_failed;
      if (call == 0) {
        status = kvevict_sequence_fork(m->sequence, NULL, &made, NULL);
      } else if (call == 1) {
        status = kvevict_sequence_start(full->sequence, layers, 2, 90, NULL);
      } else {
        const test_saved saved = test_save(full->sequence);
        status =
            kvevict_sequence_load(m->sequence, saved.data, saved.n_bytes, NULL);
        free(saved.data);
      }
      m->allocator.fail_at = full->allocator.fail_at = 0;
      kvevict_sequence_destroy(made);
      if (status == KVEVICT_OK) break;
      cr_assert_eq(status, KVEVICT_ERROR_OUT_OF_MEMORY);
      EXPECT(m->allocator.n_live == n_live, "call %d leaks", call);
      EXPECT(call != 1 || full->allocator.n_live == n_live_full, "it leaks");
      cr_expect_eq(test_model_stored(m, 0), 90);
      cr_expect_eq(test_model_stored(full, 0), call == 2 ? 45 : 0);
    }
    EXPECT(n_failed > 1, "call %d allocates nothing", call);
  }
  cr_expect_eq(test_model_stored(m, 0), 45);
  test_model_destroy(full);
  test_model_destroy(m);
}
