/* kvevict_score() takes the redundancy of keys off the scores of any signal. */
#include <math.h>
#include <stdlib.h>

#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/key_scores.h"

enum { kHeads = 3, kTokens = 210, kDim = 20 };

typedef struct model {
  float keys[kHeads * kTokens * kDim];
  float scores[kHeads * kTokens];
  float weights[kHeads * kTokens];
  kvevict_view view;
  kvevict_plane rows[2];
  kvevict_signal_inputs inputs;
} model;

/* Draws keys around a mean, so that some are similar and some are not. */
static model* DrawModel(test_random* random) {
  model* m = calloc(1, sizeof *m);
  for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
    m->keys[i] = (float)test_random_unit(random) - 0.25f;
  }
  for (int i = 0; i < kHeads * kTokens; ++i) {
    m->scores[i] = (float)test_random_below(random, 640) / 64.0f - 3.0f;
    m->weights[i] = (float)test_random_below(random, 640) / 64.0f - 1.0f;
  }
  m->view = (kvevict_view)KVEVICT_VIEW_INIT;
  m->view.n_kv_heads = kHeads;
  m->view.k =
      kvevict_plane_head_major(m->keys, KVEVICT_DTYPE_F32, kTokens, kDim);
  m->rows[0] = test_floats_plane(m->scores, kTokens);
  m->rows[1] = test_floats_plane(m->weights, kTokens);
  m->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  m->inputs.scores = &m->rows[0];
  m->inputs.token_weights = &m->rows[1];
  return m;
}

static kvevict_status Score(const model* m, const char* policy,
                            kvevict_dtype k_dtype, const uint32_t* counts,
                            float* scores) {
  kvevict_layer_geometry layer =
      test_layer(kHeads, kHeads, k_dtype == KVEVICT_DTYPE_OPAQUE ? 0 : kDim, 0);
  layer.k_dtype = k_dtype;
  const kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  test_plan* p =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  kvevict_score_job job =
      test_score_job(kTokens, &m->view, &m->inputs, scores, kHeads);
  job.token_counts = counts;
  const kvevict_status status = test_score_jobs(p, &job, 1);
  test_plan_destroy(p);
  return status;
}

/* Draws a threshold with no cosine next to it. */
static double DrawSimilarity(test_random* random, const model* m,
                             const uint32_t* counts) {
  for (;;) {
    /* The policy's text has these digits, and f32 holds them. */
    const double similarity = test_random_between(random, 100, 900) / 1024.0;
    bool is_apart = true;
    for (int h = 0; h < kHeads && is_apart; ++h) {
      is_apart = oracle_similarity_gap(m->keys + h * kTokens * kDim, counts[h],
                                       kDim, similarity) > 0;
    }
    if (is_apart) return similarity;
  }
}

static void ExpectMixed(const model* m, const uint32_t* counts, bool weighs,
                        double redundancy, double similarity,
                        const float* mixed, const char* what) {
  for (int h = 0; h < kHeads; ++h) {
    double expected[kTokens], bounds[kTokens];
    oracle_redundancy(m->keys + h * kTokens * kDim, counts[h], kDim, similarity,
                      expected, bounds);
    for (uint32_t t = 0; t < counts[h]; ++t) {
      const uint32_t i = (uint32_t)h * kTokens + t;
      const double score =
          m->scores[i] * (weighs ? (double)m->weights[i] : 1.0);
      const double want = (1.0 - redundancy) * score - redundancy * expected[t];
      EXPECT(fabs(mixed[i] - want) <=
                 bounds[t] + 0x1p-22 * (fabs(score) + expected[t]),
             "%s: head %d, token %u: %.9g, not %.9g", what, h, t,
             (double)mixed[i], want);
    }
  }
}

Test(score_redundancy, is_taken_off_weighed_scores) {
  static float mixed[kHeads * kTokens];
  test_random random = test_random_start("score redundancy");
  for (int trial = 0; trial < 12; ++trial) {
    model* m = DrawModel(&random);
    uint32_t counts[kHeads] = {kTokens, kTokens, kTokens};
    const bool ragged = trial % 2 == 1, weighs = trial % 3 == 0;
    for (int h = 0; ragged && h < kHeads; ++h) {
      counts[h] = test_random_between(&random, 1, kTokens);
    }
    const double similarity = DrawSimilarity(&random, m, counts);
    const double redundancy = trial == 0 ? 1.0 : trial % 4 * 0.25;
    char text[160];
    snprintf(text, sizeof text,
             "custom:sink=0,redundancy=%g,similarity=%.17g%s", redundancy,
             similarity, weighs ? ",weight=given" : "");
    EXPECT_OK(Score(m, text, KVEVICT_DTYPE_F32, ragged ? counts : NULL, mixed));
    if (redundancy > 0.0) {
      ExpectMixed(m, counts, weighs, redundancy, similarity, mixed, text);
    } else {
      for (int i = 0; !ragged && i < kHeads * kTokens; ++i) {
        const float want = weighs ? m->scores[i] * m->weights[i] : m->scores[i];
        EXPECT(mixed[i] == want, "%s: score %d", text, i);
      }
    }
    free(m);
  }
}

/* The latest of equal keys stays, since the others' redundancy leaves it out. */
Test(score_redundancy, leaves_the_latest_of_keys_alike) {
  static float mixed[kHeads * kTokens];
  test_random random = test_random_start("keys alike");
  model* m = DrawModel(&random);
  for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
    m->keys[i] = m->keys[i % kDim];
  }
  EXPECT_OK(
      Score(m, "custom:sink=0,redundancy=1", KVEVICT_DTYPE_F32, NULL, mixed));
  for (int h = 0; h < kHeads; ++h) {
    const float* row = mixed + h * kTokens;
    for (int t = 0; t < kTokens - 1; ++t) {
      EXPECT(row[t] < row[kTokens - 1], "head %d: token %d is no less", h, t);
    }
  }
  free(m);
}

Test(score_redundancy, needs_keys_whatever_the_signal) {
  static float mixed[kHeads * kTokens];
  test_random random = test_random_start("redundancy without keys");
  model* m = DrawModel(&random);
  GUARD(mixed);
  const kvevict_plane keys = m->view.k;
  memset(&m->view.k, 0, sizeof keys);
  EXPECT_INVALID(
      Score(m, "custom:sink=0,redundancy=0.5", KVEVICT_DTYPE_F32, NULL, mixed),
      "k.data");
  EXPECT_OK(Score(m, "custom", KVEVICT_DTYPE_F32, NULL, mixed));
  m->view.k = keys;
  m->view.k.dtype = KVEVICT_DTYPE_OPAQUE;
  m->view.k.head_dim = 0;
  m->view.k.row_bytes = kDim * sizeof(float);
  GUARD(mixed);
  cr_assert_eq(Score(m, "custom:sink=0,redundancy=0.5", KVEVICT_DTYPE_OPAQUE,
                     NULL, mixed),
               KVEVICT_ERROR_UNSUPPORTED);
  cr_assert(strstr(kvevict_last_error_message(), "k_dtype") != NULL);
  EXPECT_UNTOUCHED(mixed);
  EXPECT_OK(Score(m, "custom", KVEVICT_DTYPE_OPAQUE, NULL, mixed));
  free(m);
}
