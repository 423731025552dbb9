/* kvevict_score() and an eviction by q-filter, whose direction is the caller's. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/key_scores.h"

enum { kHeads = 3, kTokens = 50, kDim = 24, kStride = 30, kBudget = 20 };

typedef struct model {
  float keys[kHeads * kTokens * kDim];
  float filters[kHeads * kStride];
  kvevict_view view;
  kvevict_plane filter;
  kvevict_signal_inputs inputs;
} model;

static model* DrawModel(void) {
  test_random random = test_random_start("score filter");
  model* m = calloc(1, sizeof *m);
  for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
    m->keys[i] = (float)test_random_unit(&random) - 0.5f;
  }
  for (int i = 0; i < kHeads * kStride; ++i) {
    m->filters[i] = (float)test_random_unit(&random) - 0.5f;
  }
  m->view = (kvevict_view)KVEVICT_VIEW_INIT;
  m->view.n_kv_heads = kHeads;
  m->view.k =
      kvevict_plane_head_major(m->keys, KVEVICT_DTYPE_F32, kTokens, kDim);
  m->filter = test_floats_plane(m->filters, kStride);
  m->filter.head_dim = kDim;
  m->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  m->inputs.key_filter = &m->filter;
  return m;
}

static test_plan* Plan(kvevict_operation operation) {
  const kvevict_layer_geometry layer = test_layer(kHeads, kHeads, kDim, 0);
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  return test_plan_create("q-filter:sink=0,budget=20", &geometry, operation, 1);
}

static kvevict_status Score(const test_plan* p, const model* m,
                            const kvevict_signal_inputs* inputs,
                            float* scores) {
  kvevict_score_job job =
      test_score_job(kTokens, &m->view, inputs, scores, kHeads);
  return test_score_jobs(p, &job, 1);
}

Test(score, filter_scores_are_dot_products_negated) {
  model* m = DrawModel();
  test_plan* p = Plan(KVEVICT_OPERATION_SCORE);
  float scores[kHeads * kTokens];
  EXPECT_OK(Score(p, m, &m->inputs, scores));
  for (int h = 0; h < kHeads; ++h) {
    double expected[kTokens], bounds[kTokens];
    oracle_key_filter(m->keys + h * kTokens * kDim, kTokens, kDim,
                      m->filters + h * kStride, expected, bounds);
    for (int t = 0; t < kTokens; ++t) {
      EXPECT(fabs(scores[h * kTokens + t] - expected[t]) <= bounds[t],
             "head %d, token %d: %g, not %g", h, t,
             (double)scores[h * kTokens + t], expected[t]);
    }
  }
  test_plan_destroy(p);
  free(m);
}

Test(score, filter_is_checked) {
  model* m = DrawModel();
  test_plan* p = Plan(KVEVICT_OPERATION_SCORE);
  float scores[kHeads * kTokens];
  GUARD(scores);
  EXPECT_INVALID(Score(p, m, NULL, scores), "inputs.key_filter is NULL",
                 "key filter");
  m->inputs.key_filter = NULL;
  EXPECT_INVALID(Score(p, m, &m->inputs, scores), "inputs.key_filter is NULL",
                 "key filter");
  m->inputs.key_filter = &m->filter;
  m->filter.head_dim = kDim - 1;
  EXPECT_INVALID(Score(p, m, &m->inputs, scores), "key_filter.head_dim 23",
                 "24");
  m->filter.head_dim = kDim;
  m->filter.dtype = KVEVICT_DTYPE_F16;
  EXPECT_INVALID(Score(p, m, &m->inputs, scores), "key_filter.dtype");
  m->filter.dtype = KVEVICT_DTYPE_F32;
  m->filter.head_stride_bytes = (kDim - 1) * sizeof(float);
  EXPECT_INVALID(Score(p, m, &m->inputs, scores),
                 "key_filter.head_stride_bytes 92", "96");
  EXPECT_UNTOUCHED(scores);
  test_plan_destroy(p);
  free(m);
}

/* The keys with the largest products go. */
Test(score, filter_evicts_what_points_its_way) {
  model* m = DrawModel();
  test_plan* p = Plan(KVEVICT_OPERATION_EVICT);
  static double order[kTokens];
  bool stays[kHeads][kTokens];
  for (int h = 0; h < kHeads; ++h) {
    double bounds[kTokens];
    oracle_key_filter(m->keys + h * kTokens * kDim, kTokens, kDim,
                      m->filters + h * kStride, order, bounds);
    for (int t = 0; t < kTokens; ++t) {
      int n_better = 0;
      for (int j = 0; j < kTokens; ++j) n_better += order[j] > order[t];
      stays[h][t] = n_better < kBudget;
    }
  }
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, kTokens, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = &m->inputs;
  options.inputs_len = 1;
  EXPECT_OK(kvevict_sequence_evict(sequence, &m->view, 1, &options,
                                   p->workspace, p->workspace_bytes, NULL));
  for (uint32_t h = 0; h < kHeads; ++h) {
    int32_t positions[kTokens];
    size_t n = 0;
    EXPECT_OK(kvevict_sequence_keep_positions(sequence, 0, h, positions,
                                              kTokens, &n));
    EXPECT(n == kBudget, "%zu kept", n);
    for (size_t i = 0; i < n; ++i) {
      EXPECT(stays[h][positions[i]], "head %u kept token %d", h, positions[i]);
    }
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(p);
  free(m);
}
