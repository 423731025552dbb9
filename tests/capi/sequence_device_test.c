/* The CPU's answers to calls that matter most on CUDA. */
#include "kvevict/experimental.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

static test_model* Model(void) {
  return test_model_of("snapkv:budget=60,window=8,scope=head", 1);
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
