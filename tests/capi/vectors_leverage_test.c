/* Reproduces kvpress's CompactorPress. Its leverage is that of keys times a random
 * matrix, and the preset's is exact. So the oracle is first held against kvpress with
 * the matrix that was recorded, and the preset against the oracle without it. Then the
 * library repeats the recorded run by scoring the products as keys. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/leverage.h"
#include "tests/oracle/non_causal.h"
#include "tests/oracle/select.h"
#include "tests/paths.h"

enum {
  kHeads = 2,
  kQueryHeads = 4,
  kTokens = 96,
  kDim = 64,
  kSketch = 48,
  kSink = 8,
  kRecent = 4,
  kMiddle = kTokens - kSink - kRecent,
  kPairs = kDim / 2
};
static const double kBlending = 0.6;

static const char kCommon[] = "non-causal:budget=0.4,block=28,sink=8,recent=4,";

typedef struct recorded {
  char folder[1200];
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
  snprintf(r->folder, sizeof r->folder,
           "%s/vectors/compactor_kvpress__gqa4x2_D64_S96_c28", test_shared_dir);
  r->k = test_npy_read(r->folder, "K", "<f2", 3);
  if (r->k.bytes == NULL) {
    fprintf(stderr, "skipped: no reference vectors in %s\n", r->folder);
    cr_skip_test("no reference vectors in %s", r->folder);
  }
  r->v = test_npy_read(r->folder, "V", "<f2", 3);
  r->q = test_npy_read(r->folder, "Q", "<f2", 3);
  r->before = test_npy_read(r->folder, "K_pre", "<f4", 3);
  r->sketch = test_npy_read(r->folder, "sketch", "<f4", 3);
  r->leverage = test_npy_read(r->folder, "leverage", "<f4", 2);
  r->exact = test_npy_read(r->folder, "leverage_exact", "<f4", 2);
  r->noncausal = test_npy_read(r->folder, "noncausal", "<f4", 2);
  r->scores = test_npy_read(r->folder, "scores", "<f4", 2);
  EXPECT(r->v.bytes && r->q.bytes && r->before.bytes && r->sketch.bytes &&
             r->leverage.bytes && r->exact.bytes && r->noncausal.bytes &&
             r->scores.bytes,
         "%s is incomplete", r->folder);
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
  test_npy* all[] = {&r->k,      &r->v,         &r->q,
                     &r->before, &r->sketch,    &r->leverage,
                     &r->exact,  &r->noncausal, &r->scores};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) test_npy_free(all[i]);
  free(r);
}

/* By the oracle, of keys before RoPE: [kHeads, kMiddle]. */
static void OracleLeverage(const recorded* r, bool sketched, double* out) {
  for (int h = 0; h < kHeads; ++h) {
    const float* keys =
        (const float*)r->before.bytes + (h * kTokens + kSink) * kDim;
    const float* sketch = (const float*)r->sketch.bytes + h * kDim * kSketch;
    const oracle_leverage in = {kMiddle, kDim, keys, NULL,
                                NULL,    0,    0,    sketched ? sketch : NULL,
                                kSketch};
    oracle_leverage_scores(&in, out + h * kMiddle);
  }
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

Test(vectors, leverage_of_the_oracle_is_that_of_kvpress) {
  recorded* r = Load();
  double sketched[kHeads * kMiddle], exact[kHeads * kMiddle];
  OracleLeverage(r, true, sketched);
  OracleLeverage(r, false, exact);
  const float* noncausal = (const float*)r->noncausal.bytes;
  for (int i = 0; i < kHeads * kMiddle; ++i) {
    const double recorded_sketched = ((const float*)r->leverage.bytes)[i];
    const double recorded_exact = ((const float*)r->exact.bytes)[i];
    /* Recorded as f32 from double. */
    EXPECT(fabs(sketched[i] - recorded_sketched) <= 1e-6,
           "sketched %d: %g, not %g", i, sketched[i], recorded_sketched);
    EXPECT(fabs(exact[i] - recorded_exact) <= 1e-6, "exact %d: %g, not %g", i,
           exact[i], recorded_exact);
  }
  oracle_normalise(sketched, kHeads * kMiddle);
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kMiddle; ++t) {
      const int i = h * kMiddle + t;
      const double score =
          ((const float*)r->scores.bytes)[h * kTokens + kSink + t];
      const double sum = kBlending * sketched[i] + noncausal[i];
      EXPECT(fabs(score - sum) <= 1e-5, "head %d, token %d: %g, not %g", h, t,
             sum, score);
    }
  }
  Free(r);
}

/* The library turns keys of 16 bits back, which K_pre was rounded from as f32. */
Test(vectors, compactor_scores_as_kvpress_does_without_its_sketch) {
  recorded* r = Load();
  double exact[kHeads * kMiddle], both[kHeads * kMiddle],
      half[kHeads * kMiddle];
  OracleLeverage(r, false, exact);
  for (int i = 0; i < kHeads * kMiddle; ++i) both[i] = exact[i];
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

Test(vectors, compactor_keeps_the_best_of_these) {
  recorded* r = Load();
  double both[kHeads * kMiddle], scores[kTokens];
  uint8_t forced[kTokens];
  OracleLeverage(r, false, both);
  oracle_normalise(both, kHeads * kMiddle);
  test_plan* p = test_plan_create("compactor-kvpress:budget=0.4,block=28",
                                  &r->geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, kTokens, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = &r->inputs;
  options.inputs_len = 1;
  EXPECT_OK(kvevict_sequence_evict(sequence, &r->view, 1, &options,
                                   p->workspace, p->workspace_bytes, NULL));
  for (int h = 0; h < kHeads; ++h) {
    for (int t = 0; t < kTokens; ++t) {
      const int i = h * kMiddle + t - kSink;
      forced[t] = t < kSink || t >= kTokens - kRecent;
      scores[t] = forced[t] ? 0.0
                            : kBlending * both[i] +
                                  ((const float*)r->noncausal.bytes)[i];
    }
    int32_t positions[kTokens];
    size_t n = 0;
    EXPECT_OK(kvevict_sequence_keep_positions(sequence, 0, (uint32_t)h,
                                              positions, kTokens, &n));
    EXPECT(n == 38, "%zu kept", n);
    EXPECT(oracle_selection_is_right(scores, kTokens, positions, (uint32_t)n,
                                     forced, 1e-4),
           "head %d keeps others than the best", h);
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(p);
  Free(r);
}
