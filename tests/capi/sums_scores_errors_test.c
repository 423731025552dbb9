/* Scores that a sequence cannot keep or score by, and what drops them. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/copies.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/model.h"

static test_model* Model(const char* policy) {
  return test_model_of(policy, 3);
}

static kvevict_status Observe(test_model* m, const kvevict_plane* scores,
                              uint32_t n_rows, uint32_t first) {
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.scores = scores;
  const kvevict_observation shown = {sizeof shown, 1, &inputs};
  return kvevict_sequence_observe(m->sequence, &shown, 1, n_rows, first, NULL);
}

Test(scores, that_do_not_follow_are_refused) {
  test_model* m = Model("custom:budget=10");
  EXPECT_INVALID(test_model_give_scores(m, 1, 3), "layer 0",
                 "rows from 1 on: scores begin with the token of position 0");
  EXPECT_OK(test_model_give_scores(m, 0, 10));
  test_model_append(m, 10);
  EXPECT_INVALID(test_model_give_scores(m, 11, 1), "layer 0", "scores are of",
                 "[0, 10)", "from 11 on");
  EXPECT_INVALID(test_model_give_scores(m, 10, 91), "layer 0",
                 "scores of 101 slots > max_tokens 100");
  EXPECT_OK(test_model_give_scores(m, 10, 2));
  test_model_append(m, 3);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "scores are of the tokens of positions [0, 12)",
                 "13 tokens have been seen");
  EXPECT_OK(test_model_give_scores(m, 12, 1));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(kvevict_sequence_trim_to(m->sequence, 13, NULL));
  EXPECT_OK(test_model_give_scores(m, 13, 1));
  test_model_destroy(m);
}

Test(scores, that_are_missing_are_named) {
  test_model* m = Model("custom:budget=20");
  test_model_append(m, 30);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "layer 0",
                 "inputs.scores is NULL and no scores were observed");
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  EXPECT_INVALID(test_model_give_scores(m, 0, 30), "no query memory",
                 "kvevict_sequence_begin_observing");
  EXPECT_OK(kvevict_sequence_begin_observing(m->sequence, NULL, 0));
  test_model_observe(m, 20, 10); /* queries do not count */
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "no scores were observed");
  EXPECT_OK(test_model_give_scores(m, 0, 30));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  test_model_destroy(m);
}

Test(scores, of_another_shape_are_refused) {
  test_model* m = Model("custom:budget=20");
  static float scores[2 * 40];
  kvevict_plane plane = test_floats_plane(scores, 8);
  plane.data += 2;
  EXPECT_INVALID(Observe(m, &plane, 1, 0), "layer 1", "scores.data",
                 "aligned to 4");
  plane.data -= 2;
  plane.head_stride_bytes = 4 * 7;
  EXPECT_INVALID(Observe(m, &plane, 8, 0), "scores.head_stride_bytes 28",
                 "at least 32");
  plane.head_stride_bytes = 4 * 8;
  plane.dtype = KVEVICT_DTYPE_F16;
  EXPECT_INVALID(Observe(m, &plane, 8, 0), "scores.dtype");
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.token_stride_bytes = 8;
  EXPECT_INVALID(Observe(m, &plane, 8, 0), "scores.token_stride_bytes 8");
  plane.token_stride_bytes = 0;
  EXPECT_INVALID(Observe(m, NULL, 8, 0),
                 "none of queries, row_lse, attention_sums and scores");
  EXPECT_OK(Observe(m, &plane, 8, 0));
  EXPECT_OK(Observe(m, &plane, 0, 77)); /* does nothing */
  test_model_destroy(m);
  /* Other policies do not read them. */
  m = Model("h2o:budget=20,recent=4");
  EXPECT_OK(Observe(m, &plane, 8, 5));
  test_model_destroy(m);
}

/* A gate may need the tokens that follow: scores are given again while all the
 * tokens from there on are held. */
Test(scores, may_be_given_again) {
  test_model* m = Model("custom:budget=20,sink=0,recent=5");
  float zeros[2 * 40] = {0};
  const kvevict_plane plane = test_floats_plane(zeros, 40);
  EXPECT_OK(test_model_give_scores(m, 0, 40));
  EXPECT_OK(Observe(m, &plane, 40, 0));
  test_model_append(m, 40);
  EXPECT_OK(test_model_give_scores(m, 10, 12)); /* from the middle */
  EXPECT_OK(test_model_give_scores(m, 0, 10));
  EXPECT_OK(test_model_give_scores(m, 22, 18));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_INVALID(test_model_give_scores(m, 34, 2), "layer 0",
                 "scores from position 34 on cannot be given again",
                 "only the last 5 of 40 tokens");
  EXPECT_OK(Observe(m, &plane, 3, 35));
  test_model_append(m, 2);
  EXPECT_OK(Observe(m, &plane, 2, 40));
  kvevict_sequence_memory memory = {.struct_size = sizeof memory};
  EXPECT_OK(kvevict_sequence_memory_of(m->sequence, 1, &memory));
  const float* const scores = (const float*)(uintptr_t)memory.sums;
  for (uint32_t i = 0; i < 22; ++i) {
    int32_t positions[22];
    test_model_positions(m, 1, 0, positions);
    const uint32_t p = (uint32_t)positions[i];
    const bool is_zero = (p >= 35 && p < 38) || p >= 40;
    cr_expect_eq(scores[i], is_zero ? 0.0f : test_model_score(1, 0, p));
  }
  test_model_destroy(m);
}

/* The next plan keeps more last tokens than there are in a row. */
Test(scores, are_not_given_again_across_a_gap) {
  test_model* m = Model("custom:budget=20,sink=0,recent=2");
  EXPECT_OK(test_model_give_scores(m, 0, 40));
  test_model_append(m, 40);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  EXPECT_OK(
      test_model_go_on(m, "custom:budget=19,sink=0,recent=16", NULL, NULL));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  for (uint32_t n = 1; n <= 16; ++n) {
    bool held = true;
    for (uint32_t l = 0; l < 2; ++l) {
      for (uint32_t h = 0; h < 2; ++h) {
        int32_t positions[20];
        test_model_positions(m, l, h, positions);
        held = held && positions[19 - n] == (int32_t)(40 - n);
      }
    }
    if (held) {
      EXPECT_OK(test_model_give_scores(m, 40 - n, n));
    } else {
      EXPECT_INVALID(test_model_give_scores(m, 40 - n, n), "given again");
    }
  }
  test_model_destroy(m);
}

/* An eviction by other scores drops those that lack tokens, and keeps whole ones. */
Test(scores, of_an_eviction_come_first) {
  for (uint32_t n_given = 29; n_given <= 30; ++n_given) {
    test_model* m = Model("custom:budget=10,sink=0");
    EXPECT_OK(test_model_give_scores(m, 0, n_given));
    test_model_append(m, 30);
    float rising[2][30];
    for (int i = 0; i < 60; ++i) rising[i / 30][i % 30] = (float)(i % 30);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    test_inputs inputs;
    test_give_scores(&options, &inputs, 2, rising[0], 0, 30);
    EXPECT_OK(test_model_evict(m, &options, NULL));
    int32_t positions[10];
    test_model_positions(m, 1, 1, positions);
    for (int i = 0; i < 10; ++i) cr_expect_eq(positions[i], 20 + i);
    if (n_given == 30) {
      EXPECT_OK(test_model_give_scores(m, 30, 5));
    } else {
      EXPECT_INVALID(test_model_give_scores(m, 30, 5), "layer 0",
                     "tokens before position 30 have no scores",
                     "some of them were evicted");
      EXPECT_INVALID(test_model_give_scores(m, 0, 35), "before position 30");
    }
    test_model_append(m, 5);
    if (n_given == 30) {
      EXPECT_OK(test_model_evict(m, NULL, NULL));
    } else {
      EXPECT_INVALID(test_model_evict(m, NULL, NULL),
                     "no scores were observed");
    }
    test_model_destroy(m);
  }
}

/* A sequence that starts from gaps has no scores; one that was saved has them. */
Test(scores, go_along_with_what_is_saved_but_not_with_a_start) {
  test_model* m = Model("custom:budget=20,sink=2");
  EXPECT_OK(test_model_give_scores(m, 0, 60));
  test_model_append(m, 60);
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  const test_saved saved = test_save(m->sequence);
  kvevict_sequence* start = test_copy(m->plan, m->sequence, TEST_COPY_START);
  kvevict_sequence* const first = m->sequence;
  m->sequence = start;
  test_model_append(m, 10);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "no scores were observed");
  EXPECT_INVALID(test_model_give_scores(m, 60, 10), "before position 60");
  EXPECT_OK(kvevict_sequence_reset(m->sequence, NULL));
  EXPECT_OK(kvevict_sequence_start(m->sequence, NULL, 0, 70, NULL));
  m->n_seen = 70;
  EXPECT_OK(test_model_give_scores(m, 0, 70));
  EXPECT_OK(test_model_evict(m, NULL, NULL));
  /* Without memory they are dropped, and nothing else is. */
  EXPECT_OK(kvevict_sequence_end_observing(m->sequence));
  EXPECT_OK(
      kvevict_sequence_load(m->sequence, saved.data, saved.n_bytes, NULL));
  m->n_seen = 60;
  test_model_append(m, 10);
  EXPECT_INVALID(test_model_evict(m, NULL, NULL), "no scores were observed");
  test_model* norm = Model("knorm:budget=20,sink=2");
  EXPECT_OK(
      kvevict_sequence_load(norm->sequence, saved.data, saved.n_bytes, NULL));
  kvevict_sequence_destroy(start);
  m->sequence = first;
  m->n_seen = 60;
  free(saved.data);
  test_model_destroy(norm);
  test_model_destroy(m);
}

/* Several sequences are given scores in one call, or none of them is. */
Test(scores, of_a_batch_are_given_at_once) {
  test_model* a = Model("custom:budget=10");
  test_model_spec spec = a->spec;
  spec.context = a->context;
  test_model* b = test_model_create(&spec, (test_random){4});
  static float scores[2 * 30];
  for (int i = 0; i < 60; ++i) scores[i] = (float)(i % 30);
  const kvevict_plane plane = test_floats_plane(scores, 30);
  kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
  inputs.scores = &plane;
  const kvevict_observation shown[2] = {{sizeof *shown, 0, &inputs},
                                        {sizeof *shown, 1, &inputs}};
  kvevict_sequence_observations items[2];
  for (int i = 0; i < 2; ++i) {
    items[i] =
        (kvevict_sequence_observations)KVEVICT_SEQUENCE_OBSERVATIONS_INIT;
    items[i].sequence = i == 0 ? a->sequence : b->sequence;
    items[i].n_rows = 30;
    items[i].observations = shown;
    items[i].observations_len = 2;
  }
  items[1].first_position = 3;
  EXPECT_INVALID(kvevict_sequences_observe(items, 2, NULL), "items[1]",
                 "rows from 3 on");
  test_model_append(a, 30);
  test_model_append(b, 30);
  EXPECT_INVALID(test_model_evict(a, NULL, NULL), "no scores were observed");
  items[0].first_position = items[1].first_position = 0;
  EXPECT_OK(kvevict_sequences_observe(items, 2, NULL));
  EXPECT_OK(test_model_evict(a, NULL, NULL));
  EXPECT_OK(test_model_evict(b, NULL, NULL));
  test_expect_same_tokens(a, b, "both");
  int32_t positions[10];
  test_model_positions(b, 1, 1, positions);
  cr_expect_eq(positions[9], 29);
  cr_expect_eq(positions[4], 24);
  test_model_destroy(b);
  test_model_destroy(a);
}
