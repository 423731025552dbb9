/* The CPU's answers to calls that matter most on CUDA. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

static test_model* Model(void) {
  return test_model_of("snapkv:budget=60,window=8,scope=head", 1);
}

static kvevict_sequence_memory MemoryOf(const test_model* m, uint32_t layer) {
  kvevict_sequence_memory memory = {.struct_size = sizeof(memory)};
  EXPECT_OK(kvevict_sequence_memory_of(m->sequence, layer, &memory));
  return memory;
}

static void ExpectMemoryMatchesAnswers(const test_model* m) {
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const kvevict_sequence_memory memory = MemoryOf(m, layer);
    const uint32_t* lengths = (const uint32_t*)(uintptr_t)memory.lengths;
    /* The lists of all layers lie end to end. */
    cr_expect_eq(memory.lengths,
                 MemoryOf(m, 0).lengths + (uint64_t)layer * memory.n_lists * 8);
    uint32_t logical = 0;
    EXPECT_OK(kvevict_sequence_logical_length(m->sequence, &logical));
    for (uint32_t list = 0; list < memory.n_lists; ++list) {
      const uint32_t* of_list = lengths + 2 * list;
      cr_expect_eq(of_list[0], test_model_stored(m, layer));
      cr_expect_eq(of_list[1], logical);
    }
    cr_expect_eq(memory.listed_counts, 0);
    const int32_t* listed = (const int32_t*)(uintptr_t)memory.positions;
    for (uint32_t i = 0; i < memory.n_lists * memory.n_listed; ++i) {
      int32_t position = -1;
      EXPECT_OK(kvevict_sequence_position_of_slot(
          m->sequence, layer, i / memory.n_listed, i % memory.n_listed,
          &position));
      cr_expect_eq(listed[i], position, "layer %u, element %u", layer, i);
    }
  }
}

Test(sequence_device, memory_holds_lengths_and_positions) {
  test_model* m = Model();
  ExpectMemoryMatchesAnswers(m);
  const uint64_t lengths = MemoryOf(m, 1).lengths;
  test_model_step(m, 100);
  ExpectMemoryMatchesAnswers(m);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  ExpectMemoryMatchesAnswers(m);
  cr_expect_eq(MemoryOf(m, 1).n_listed, 60);
  cr_expect_eq(MemoryOf(m, 1).n_lists, 2);
  test_model_step(m, 30);
  ExpectMemoryMatchesAnswers(m);
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  ExpectMemoryMatchesAnswers(m);
  cr_expect_eq(MemoryOf(m, 1).lengths, lengths);
  test_model_destroy(m);
}

Test(sequence_device, position_next_is_the_logical_length) {
  test_model* a = Model();
  test_model* b = Model();
  test_model_step(a, 90);
  for (uint32_t first = 0; first < 90; first += 45) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const kvevict_plane queries = test_model_queries(b, layer, first);
      EXPECT_OK(test_observe(b->sequence, layer, &queries, 45,
                             KVEVICT_POSITION_NEXT));
    }
    test_model_append(b, 45);
  }
  EXPECT_OK(test_model_evict(a, NULL, NULL));
  EXPECT_OK(test_model_evict(b, NULL, NULL));
  test_expect_same_tokens(a, b, "captured at KVEVICT_POSITION_NEXT");
  test_model_destroy(a);
  test_model_destroy(b);
}

/* A count without its queries would let an eviction pass that never saw them. */
Test(sequence_device, replays_are_unsupported_on_the_cpu) {
  test_model* m = Model();
  test_model_step(m, 90);
  for (uint32_t n = 0; n <= 20; n += 4) {
    EXPECT_FAILS(kvevict_sequence_replayed(m->sequence, n),
                 KVEVICT_ERROR_UNSUPPORTED, "replayed", "CPU");
  }
  EXPECT_INVALID(kvevict_sequence_replayed(NULL, 1), "sequence", "NULL");
  ExpectMemoryMatchesAnswers(m);
  test_model_check(m, "after refused replays");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sequence_device, log_sum_exps_are_checked_and_change_nothing_here) {
  test_model* a = Model();
  test_model* b = Model();
  float lse[4 * 8];
  for (int i = 0; i < 4 * 8; ++i) lse[i] = 1e9f;
  kvevict_plane plane = {.data = (uint64_t)(uintptr_t)lse,
                         .token_stride_bytes = 4 * sizeof(float),
                         .head_stride_bytes = sizeof(float),
                         .dtype = KVEVICT_DTYPE_F32,
                         .head_dim = 1};
  test_model_step(a, 90);
  test_model_step(b, 90);
  EXPECT_OK(test_observe_lse(b->sequence, 1, &plane, 8, 82));
  EXPECT_OK(test_model_evict(a, NULL, NULL));
  EXPECT_OK(test_model_evict(b, NULL, NULL));
  test_expect_same_tokens(a, b, "with log-sum-exps");
  EXPECT_INVALID(test_observe_lse(b->sequence, 2, &plane, 8, 82), "layer 2",
                 "n_layers 2");
  EXPECT_INVALID(test_observe_lse(NULL, 0, &plane, 8, 82), "sequence", "NULL");
  plane.head_dim = 2;
  EXPECT_INVALID(test_observe_lse(b->sequence, 0, &plane, 8, 82),
                 "row_lse.head_dim 2");
  plane.head_dim = 1;
  plane.dtype = KVEVICT_DTYPE_BF16;
  EXPECT_INVALID(test_observe_lse(b->sequence, 0, &plane, 8, 82),
                 "row_lse.dtype bf16");
  test_model_destroy(a);
  test_model_destroy(b);
}

Test(sequence_device, streams_and_preparing_are_nothing_here) {
  test_model* m = Model();
  EXPECT_OK(kvevict_context_prepare(m->context, m->plan));
  EXPECT_OK(kvevict_context_prepare(m->context, NULL));
  EXPECT_INVALID(kvevict_context_prepare(NULL, m->plan), "context", "NULL");
  test_model* other = Model();
  EXPECT_INVALID(kvevict_context_prepare(other->context, m->plan), "plan",
                 "another context");
  test_model_destroy(other);
  test_model_destroy(m);
  /* The CPU ignores which stream is named. */
  m = Model();
  test_model* without = Model();
  const kvevict_stream stream = m;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const kvevict_plane queries = test_model_queries(m, layer, 0);
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    inputs.queries = &queries;
    const kvevict_observation shown = {sizeof shown, layer, &inputs};
    EXPECT_OK(kvevict_sequence_observe(m->sequence, &shown, 1, 90, 0, stream));
  }
  test_model_append(m, 100);
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 90, stream));
  m->n_seen = 90;
  test_model_step(without, 90);
  EXPECT_OK(kvevict_sequence_evict(m->sequence, m->views, 2, NULL, m->workspace,
                                   m->workspace_bytes, stream));
  EXPECT_OK(test_model_evict(without, NULL, NULL));
  test_expect_same_tokens(m, without, "with a stream");
  EXPECT_OK(kvevict_sequence_append(m->sequence, 3, stream));
  EXPECT_OK(kvevict_sequence_reset(m->sequence, stream));
  cr_expect_eq(test_model_stored(m, 0), 0);
  test_model_destroy(m);
  test_model_destroy(without);
}

Test(sequence_device, memory_of_refuses_bad_input) {
  test_model* m = Model();
  kvevict_sequence_memory memory = {.struct_size = sizeof(memory)};
  EXPECT_INVALID(kvevict_sequence_memory_of(NULL, 0, &memory), "sequence",
                 "NULL");
  EXPECT_INVALID(kvevict_sequence_memory_of(m->sequence, 2, &memory), "layer 2",
                 "n_layers 2");
  EXPECT_INVALID(kvevict_sequence_memory_of(m->sequence, 0, NULL), "out",
                 "NULL");
  memory.struct_size = 4;
  EXPECT_INVALID(kvevict_sequence_memory_of(m->sequence, 0, &memory),
                 "out.struct_size 4");
  test_model_destroy(m);
}
