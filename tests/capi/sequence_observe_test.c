/* Query rows that a sequence is shown. sequence_life_test.c shows them in many ways. */
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

static test_model* Model(void) {
  return test_model_of("snapkv:budget=60,window=8", 1);
}

Test(sequence, observe_refuses_bad_arguments) {
  test_model* m = Model();
  kvevict_sequence* const s = m->sequence;
  const kvevict_plane good = test_model_queries(m, 0, 0);
  kvevict_plane q = good;
  EXPECT_INVALID(test_observe(NULL, 0, &q, 1, 0), "sequence", "NULL");
  EXPECT_INVALID(test_observe(s, 2, &q, 1, 0), "layer 2", "n_layers 2");
  EXPECT_INVALID(test_observe(s, 0, &q, 2, INT32_MAX - 1),
                 "first_position 2147483646", "n_rows 2");
  q.data = 0;
  EXPECT_INVALID(test_observe(s, 0, &q, 1, 0), "layer 0", "queries.data is 0");
  q = good;
  q.dtype = KVEVICT_DTYPE_BF16;
  EXPECT_INVALID(test_observe(s, 0, &q, 1, 0), "queries.dtype bf16", "f16");
  q = good;
  q.head_dim = 17;
  EXPECT_INVALID(test_observe(s, 0, &q, 1, 0), "queries.head_dim 17", "16");
  q = good;
  q.token_stride_bytes = INT64_MAX;
  EXPECT_INVALID(test_observe(s, 0, &q, 3, 0), "queries", "64");
  q = good;
  q.reserved[4] = 9;
  EXPECT_INVALID(test_observe(s, 0, &q, 1, 0), "queries.reserved", "9");
  test_model_destroy(m);
}

/* `change` spoils one of two good observations. */
#define EXPECT_BREAKS(change, ...)                                           \
  do {                                                                       \
    test_model* m = Model();                                                 \
    kvevict_plane q[] = {test_model_queries(m, 0, 0),                        \
                         test_model_queries(m, 1, 0)};                       \
    kvevict_signal_inputs in[] = {KVEVICT_SIGNAL_INPUTS_INIT,                \
                                  KVEVICT_SIGNAL_INPUTS_INIT};               \
    kvevict_observation both[2], *at = both;                                 \
    for (uint32_t l = 0; l < 2; ++l) {                                       \
      in[l].queries = &q[l];                                                 \
      both[l] = (kvevict_observation){sizeof both[l], l, &in[l]};            \
    }                                                                        \
    EXPECT_OK(kvevict_sequence_observe(m->sequence, at, 2, 1, 0, NULL));     \
    change;                                                                  \
    EXPECT_INVALID(kvevict_sequence_observe(m->sequence, at, 2, 1, 0, NULL), \
                   __VA_ARGS__);                                             \
    test_model_destroy(m);                                                   \
  } while (0)

Test(sequence, observe_refuses_bad_observations) {
  EXPECT_BREAKS(at = NULL, "observations", "NULL");
  EXPECT_BREAKS(both[1].struct_size = 8, "observations[1]", "struct_size");
  EXPECT_BREAKS(both[0].struct_size = 8, "observations[0]", "struct_size 8");
  EXPECT_BREAKS(both[1].layer = 2, "observations[1]", "layer 2", "n_layers 2");
  EXPECT_BREAKS(both[1].layer = 0, "observations[1]", "layer 0", "must ascend");
  EXPECT_BREAKS(both[0].layer = 1, "observations[1]", "layer 1", "must ascend");
  EXPECT_BREAKS(both[1].inputs = NULL, "observations[1]", "inputs", "NULL");
  EXPECT_BREAKS(in[0].struct_size = 8, "observations[0]", "struct_size 8");
  EXPECT_BREAKS(in[1].queries = NULL, "observations[1]", "queries", "row_lse");
  EXPECT_BREAKS(q[1].head_dim = 17, "layer 1", "queries.head_dim 17", "16");
}

Test(sequence, no_observations_do_nothing) {
  test_model* m = Model();
  EXPECT_OK(kvevict_sequence_observe(m->sequence, NULL, 0, 3, 7, NULL));
  test_model_step(m, 100);
  EXPECT_OK(kvevict_sequence_observe(m->sequence, NULL, 0, 8, 0, NULL));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sequence, a_bad_layer_leaves_all_layers_untouched) {
  test_model *m = Model(), *control = Model();
  test_model_step(m, 100);
  test_model_step(control, 100);
  /* Gives layer 0 other rows for the window, and layer 1 none. */
  kvevict_plane planes[] = {test_model_queries(m, 0, 0),
                            test_model_queries(m, 1, 0)};
  planes[1].data = 0;
  EXPECT_INVALID(test_observe_layers(m->sequence, planes, 2, 8, 92), "layer 1",
                 "queries.data is 0");
  /* A failure does not forget rows, as a rollback would. */
  EXPECT_INVALID(test_observe_layers(m->sequence, planes, 2, 8, 40), "layer 1",
                 "queries.data is 0");
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(test_model_evict(control, NULL, NULL));
  test_expect_same_tokens(m, control, "after a refused observe");
  test_model_destroy(m);
  test_model_destroy(control);
}

Test(sequence, observe_copies_the_rows) {
  test_model *m = Model(), *control = Model();
  test_model_step(m, 100);
  memset(m->queries[0], 0x11, 100 * 4 * 16 * 2);
  memset(m->queries[1], 0x22, 100 * 4 * 16 * 2);
  test_model_step(control, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(test_model_evict(control, NULL, NULL));
  test_expect_same_tokens(m, control, "queries overwritten after observe");
  test_model_destroy(m);
  test_model_destroy(control);
}

Test(sequence, observe_does_nothing_where_attention_does_not_score) {
  test_model* m = test_model_of("streaming-llm:budget=20", 1);
  const kvevict_plane nothing[2] = {0};
  EXPECT_OK(test_observe_layers(m->sequence, nothing, 2, 1, 0));
  test_model_step(m, 100);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_check(m, "streaming-llm");
  test_model_destroy(m);
}

Test(sequence, opaque_queries_cannot_be_observed) {
  test_model_spec spec = test_small_model("snapkv:budget=60,window=8");
  spec.q_dtype = KVEVICT_DTYPE_OPAQUE;
  test_model* m = test_model_create(&spec, (test_random){1});
  kvevict_plane q = test_model_queries(m, 0, 0);
  q.head_dim = 0;
  q.row_bytes = 16;
  EXPECT_FAILS(test_observe(m->sequence, 0, &q, 1, 0),
               KVEVICT_ERROR_UNSUPPORTED, "opaque");
  const kvevict_plane both[] = {q, q};
  EXPECT_FAILS(test_observe_layers(m->sequence, both, 2, 1, 0),
               KVEVICT_ERROR_UNSUPPORTED, "opaque");
  test_model_destroy(m);
}

Test(sequence, rollback_forgets_what_came_after) {
  test_model* m = Model();
  test_model_observe(m, 0, 100);
  test_model_append(m, 100);
  test_model_observe(m, 90,
                     5); /* now rows up to 95 are known, 100 are needed */
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "observed", "95", "100");
  test_model_observe(m, 95, 5);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(sequence, too_few_observed_rows_are_an_error) {
  for (uint32_t missing = 1; missing <= 8; ++missing) {
    test_model* m = Model();
    test_model_append(m, 100);
    test_model_observe(m, 92 + missing, 8 - missing);
    test_cache* before = test_cache_clone(m->live[0]);
    EXPECT_INVALID(test_model_evict(m, NULL, NULL), "observed",
                   "), but window 8");
    test_expect_same_bytes(m->live[0], before, "too few rows");
    test_model_check(m, "too few rows");
    test_cache_destroy(before);
    test_model_destroy(m);
  }
}

Test(sequence, rows_missing_in_one_layer_are_found) {
  test_model* m = Model();
  test_model_append(m, 100);
  const kvevict_plane q = test_model_queries(m, 0, 0);
  EXPECT_OK(test_observe(m->sequence, 0, &q, 100, 0));
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 1");
  cr_expect_eq(test_model_stored(m, 0), 100);
  test_model_destroy(m);
}
