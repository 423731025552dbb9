/* Reproduces kvpress's CompactorPress. Its leverage is that of keys times a random
 * matrix, and the preset's is exact, which was recorded too. The library repeats the run
 * with the matrix by scoring the products as keys. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/non_causal.h"

enum {
  kHeads = 2,
  kQueryHeads = 4,
  kTokens = 96,
  kDim = 64,
  kSketch = 48,
  kSink = 8,
  kRecent = 4,
  kMiddle = kTokens - kSink - kRecent,
  kPairs = kDim / 2,
  kArrays = 9
};
static const double kBlending = 0.6;

static const char kCommon[] = "non-causal:budget=0.4,block=28,sink=8,recent=4,";

typedef struct recorded {
  test_npy_entry entries[kArrays];
  test_npy k, v, q, before, sketch, leverage, exact, noncausal, scores;
  float inv_freq[kPairs];
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
  kvevict_view view;
  kvevict_plane queries;
  kvevict_signal_inputs inputs;
} recorded;

static kvevict_plane Halves(const test_npy* array) {
  return kvevict_plane_head_major(array->bytes, KVEVICT_DTYPE_F16, kTokens,
                                  kDim);
}

static recorded* Load(void) {
  recorded* r = calloc(1, sizeof *r);
  const test_npy_entry entries[kArrays] = {
      {&r->k, "K", "<f2", 3},
      {&r->v, "V", "<f2", 3},
      {&r->q, "Q", "<f2", 3},
      {&r->before, "K_pre", "<f4", 3},
      {&r->sketch, "sketch", "<f4", 3},
      {&r->leverage, "leverage", "<f4", 2},
      {&r->exact, "leverage_exact", "<f4", 2},
      {&r->noncausal, "noncausal", "<f4", 2},
      {&r->scores, "scores", "<f4", 2}};
  memcpy(r->entries, entries, sizeof entries);
  test_npy_read_all("compactor_kvpress__gqa4x2_D64_S96_c28", entries, kArrays);
  for (int f = 0; f < kPairs; ++f) {
    r->inv_freq[f] = (float)pow(10000.0, -(double)f / kPairs);
  }
  r->layer = test_layer(kQueryHeads, kHeads, kDim, kDim);
  r->layer.k_dtype = r->layer.v_dtype = r->layer.q_dtype = KVEVICT_DTYPE_F16;
  r->geometry = test_geometry(1, kTokens, &r->layer);
  r->geometry.rope_inv_freq = r->inv_freq;
  r->geometry.rope_inv_freq_len = kPairs;
  r->view = (kvevict_view)KVEVICT_VIEW_INIT;
  r->view.n_kv_heads = kHeads;
  r->view.k = Halves(&r->k);
  r->view.v = Halves(&r->v);
  r->queries = Halves(&r->q);
  r->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  r->inputs.queries = &r->queries;
  return r;
}

static void Free(recorded* r) {
  test_npy_free_all(r->entries, kArrays);
  free(r);
}

/* Scores of a policy, [kHeads, kTokens]. */
static void ScoreView(const kvevict_geometry* geometry,
                      const kvevict_view* view,
                      const kvevict_signal_inputs* inputs, const char* target,
                      const char* policy, float* scores) {
  test_plan* p = test_plan_create_for(target, policy, geometry,
                                      KVEVICT_OPERATION_SCORE, 2);
  test_plan_poison(p, 0xFF);
  kvevict_score_job job = test_score_job(kTokens, view, inputs, scores, kHeads);
  EXPECT_OK(test_score_jobs(p, &job, 1));
  test_plan_destroy(p);
}

static void Score(const recorded* r, const char* target, const char* policy,
                  float* scores) {
  ScoreView(&r->geometry, &r->view, &r->inputs, target, policy, scores);
}

/* Scores keys before RoPE times the recorded matrix. */
static void ScoreProducts(const recorded* r, const char* target,
                          const char* policy, float* scores) {
  static float products[kHeads * kTokens * kSketch];
  for (int i = 0; i < kHeads * kTokens * kSketch; ++i) {
    const int row = i / kSketch;
    const float* key = (const float*)r->before.bytes + row * kDim;
    const float* column = (const float*)r->sketch.bytes +
                          row / kTokens * kDim * kSketch + i % kSketch;
    double product = 0.0;
    for (int e = 0; e < kDim; ++e) {
      product += (double)key[e] * column[e * kSketch];
    }
    products[i] = (float)product;
  }
  const kvevict_layer_geometry layer =
      test_layer(kQueryHeads, kHeads, kSketch, 0);
  const float no_rope = 0.0f;
  kvevict_geometry geometry = test_geometry(1, kTokens, &layer);
  geometry.rope_inv_freq = &no_rope;
  geometry.rope_inv_freq_len = 1;
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k =
      kvevict_plane_head_major(products, KVEVICT_DTYPE_F32, kTokens, kSketch);
  ScoreView(&geometry, &view, NULL, target, policy, scores);
}

/* Each within `bound` of the largest. */
static void ExpectNear(const char* what, const float* scores,
                       const double* expected, double bound) {
  double largest = 0.0;
  for (int i = 0; i < kHeads * kMiddle; ++i) {
    largest = fmax(largest, fabs(expected[i]));
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kMiddle; ++t) {
      const double score = scores[h * kTokens + kSink + t];
      const double wanted = expected[h * kMiddle + t];
      EXPECT(fabs(score - wanted) <= bound * largest,
             "%s: head %d, token %d: %.9g, not %.9g", what, h, kSink + t, score,
             wanted);
    }
  }
}

/* The library turns keys of 16 bits back, which K_pre was rounded from as f32. */
Test(vectors, compactor_scores_as_kvpress_does_without_its_sketch) {
  recorded* r = Load();
  double exact[kHeads * kMiddle], both[kHeads * kMiddle],
      half[kHeads * kMiddle];
  for (int i = 0; i < kHeads * kMiddle; ++i) {
    both[i] = exact[i] = ((const float*)r->exact.bytes)[i];
  }
  oracle_normalise(both, kHeads * kMiddle);
  for (int i = 0; i < kHeads * kMiddle; ++i) {
    half[i] = ((const float*)r->noncausal.bytes)[i];
    both[i] = kBlending * both[i] + half[i];
  }
  const char* target;
  for (uint32_t i = 0; (target = kvevict_simd_target_at(i)) != NULL; ++i) {
    float scores[kHeads * kTokens];
    char policy[256];
    Score(r, target, "leverage:budget=0.4,sink=8,recent=4", scores);
    ExpectNear("leverage", scores, exact, 2e-6);
    for (int h = 0; h < kHeads; ++h) {
      for (int t = 0; t < kTokens; ++t) {
        const bool is_end = t < kSink || t >= kTokens - kRecent;
        EXPECT(!is_end || scores[h * kTokens + t] == 0.0f, "end %d: %g", t,
               (double)scores[h * kTokens + t]);
      }
    }
    snprintf(policy, sizeof policy, "%sends=out,standardize=yes", kCommon);
    Score(r, target, policy, scores);
    ExpectNear("non-causal", scores, half, 2e-5);
    Score(r, target, "compactor-kvpress:budget=0.4,block=28", scores);
    ExpectNear("compactor", scores, both, 2e-5);
    /* With chunks of all tokens it would not be the same. */
    snprintf(policy, sizeof policy, "%sstandardize=yes", kCommon);
    Score(r, target, policy, scores);
    EXPECT(fabs(scores[kSink] - half[0]) > 1e-2, "ends=in: %g",
           (double)scores[kSink]);
  }
  Free(r);
}

/* docs/policies/leverage.md tells how. The products are rounded to f32 once. */
Test(vectors, compactor_scores_as_kvpress_did_with_its_sketch) {
  recorded* r = Load();
  double leverage[kHeads * kMiddle], both[kHeads * kMiddle];
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kMiddle; ++t) {
      const int from = h * kTokens + kSink + t;
      leverage[h * kMiddle + t] =
          ((const float*)r->leverage.bytes)[h * kMiddle + t];
      both[h * kMiddle + t] = ((const float*)r->scores.bytes)[from];
    }
  }
  const char* target;
  for (uint32_t i = 0; (target = kvevict_simd_target_at(i)) != NULL; ++i) {
    float scores[kHeads * kTokens], half[kHeads * kTokens];
    char policy[256];
    ScoreProducts(r, target, "leverage:budget=0.4,sink=8,recent=4", scores);
    ExpectNear("leverage", scores, leverage, 2e-6);
    ScoreProducts(r, target,
                  "leverage:budget=0.4,sink=8,recent=4,standardize=yes",
                  scores);
    snprintf(policy, sizeof policy, "%sends=out,standardize=yes", kCommon);
    Score(r, target, policy, half);
    for (int k = 0; k < kHeads * kTokens; ++k) {
      scores[k] = (float)kBlending * scores[k] + half[k];
    }
    ExpectNear("compactor", scores, both, 2e-5);
  }
  Free(r);
}
