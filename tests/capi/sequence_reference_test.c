/* What reference queries need. sequence_life_test.c has their evictions. */
#include "kvevict/batch.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

/* Alone they need no observed queries; beside the window's they do. */
Test(sequence, reference_queries_alone_need_no_window) {
  const char* const kBoth[] = {
      "snapkv:budget=40,window=8,reference=5",
      "snapkv:budget=40,window=8,reference=5,reference_weight=0.5"};
  for (int i = 0; i < 2; ++i) {
    test_model* m = test_model_of(kBoth[i], 18);
    EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
    test_model_append(m, 90);
    m->reference_first = 0;
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_model_give_reference(m, &inputs, &options);
    if (i == 0) {
      EXPECT_OK(test_model_evict(m, &options, NULL));
    } else {
      EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 0",
                     "observing");
    }
    EXPECT(test_model_stored(m, 0) == (i == 0 ? 40u : 90u), "%u stored",
           test_model_stored(m, 0));
    test_model_check(m, kBoth[i]);
    test_model_destroy(m);
  }
}

/* The sequence's memory holds no queries if none are read. */
Test(sequence, reference_queries_alone_take_no_query_memory) {
  test_model* m = test_model_of("snapkv:window=8,reference=5", 19);
  kvevict_workspace memory = {.struct_size = sizeof memory};
  EXPECT_OK(
      kvevict_plan_workspace(m->plan, KVEVICT_OPERATION_OBSERVE, 0, &memory));
  EXPECT(memory.best_bytes == 0, "%zu bytes", memory.best_bytes);
  test_model_destroy(m);
}

Test(sequence, reference_queries_are_checked) {
  test_model_spec spec =
      test_small_model("snapkv:budget=40,window=8,reference=5");
  test_model* m = test_model_create(&spec, (test_random){20});
  test_model_append(m, 90);
  int32_t positions[5] = {0, 1, 2, 3, -4};
  m->reference_positions = positions;
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  test_inputs inputs;
  test_model_give_reference(m, &inputs, &options);
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 0",
                 "reference_positions[4] -4 < 0");
  positions[4] = 4;
  inputs.planes[1].dtype = KVEVICT_DTYPE_BF16;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "reference_queries.dtype");
  inputs.planes[1].dtype = spec.q_dtype;
  inputs.inputs[1].reference_queries = NULL;
  EXPECT_INVALID(test_model_evict(m, &options, NULL), "layer 1",
                 "inputs.reference_queries is NULL", "reference 5");
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "inputs.reference_queries is NULL");
  EXPECT(test_model_stored(m, 0) == 90, "%u stored", test_model_stored(m, 0));
  test_model_check(m, "after errors");
  inputs.inputs[1].reference_queries = &inputs.planes[1];
  EXPECT_OK(test_model_evict(m, &options, NULL));
  /* Within the budget nothing scores, and nothing is needed. */
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

/* A batch evicts as its sequences do by themselves. */
Test(sequence, reference_queries_in_a_batch) {
  test_model_spec spec = test_small_model(
      "snapkv:budget=40,window=8,reference=5,reference_weight=0.5");
  test_model* alone[2];
  test_model* batched[2];
  test_inputs inputs[4];
  kvevict_evict_options options[4];
  for (uint32_t i = 0; i < 4; ++i) {
    test_model** const m = i < 2 ? &alone[i] : &batched[i - 2];
    spec.context = i < 3 ? NULL : batched[0]->context;
    *m = test_model_create(&spec, (test_random){21 + i % 2});
    test_model_step(*m, 80 + 10 * (i % 2));
    (*m)->reference_first = (*m)->n_seen;
    options[i] = (kvevict_evict_options)KVEVICT_EVICT_OPTIONS_INIT;
    test_model_give_reference(*m, &inputs[i], &options[i]);
    if (i < 2) EXPECT_OK(test_model_evict(*m, &options[i], NULL));
  }
  kvevict_sequence_eviction items[2];
  for (uint32_t i = 0; i < 2; ++i) {
    items[i] = (kvevict_sequence_eviction)KVEVICT_SEQUENCE_EVICTION_INIT;
    items[i].sequence = batched[i]->sequence;
    items[i].views = batched[i]->views;
    items[i].views_len = spec.n_layers;
    items[i].options = &options[2 + i];
  }
  EXPECT_OK(kvevict_sequences_evict(items, 2, batched[0]->workspace,
                                    batched[0]->workspace_bytes, NULL));
  for (uint32_t i = 0; i < 2; ++i) {
    test_expect_same_tokens(alone[i], batched[i], "in a batch");
    test_model_check(batched[i], "in a batch");
    test_model_destroy(alone[i]);
  }
  test_model_destroy(batched[1]);
  test_model_destroy(batched[0]);
}
