/* Policy leverage, standardised scores, and leverage that is added to the scores of other
 * policies. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"
#include "tests/oracle/leverage.h"
#include "tests/oracle/non_causal.h"

enum { kHeads = 2, kMostTokens = 210, kMostDim = 72 };

typedef struct scene {
  uint32_t n_tokens, dim, n_pairs;
  kvevict_rope_layout layout;
  float keys[kHeads * kMostTokens * kMostDim];
  float given[kHeads * kMostTokens];
  float inv_freq[kMostDim / 2];
  const uint32_t* counts;
  kvevict_view view;
  kvevict_plane scores_plane;
  kvevict_signal_inputs inputs;
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
} scene;

/* Keys before RoPE lie near a few directions and have a mean; RoPE turns them. */
static scene* Draw(uint32_t n_tokens, uint32_t dim, uint32_t n_pairs,
                   kvevict_rope_layout layout, test_random* random) {
  scene* s = calloc(1, sizeof *s);
  s->n_tokens = n_tokens;
  s->dim = dim;
  s->n_pairs = n_pairs;
  s->layout = layout;
  for (uint32_t f = 0; f < n_pairs; ++f) {
    s->inv_freq[f] = (float)pow(10000.0, -(double)f / n_pairs);
  }
  for (uint32_t i = 0; i < kHeads * n_tokens; ++i) {
    float* key = s->keys + (size_t)i * dim;
    const double along = 4.0 * test_random_unit(random);
    for (uint32_t e = 0; e < dim; ++e) {
      key[e] = (float)(1.5 * (e % 3) + along * (e % 5) +
                       test_random_unit(random) - 0.5);
    }
    for (uint32_t f = 0; f < n_pairs; ++f) {
      const bool apart = layout == KVEVICT_ROPE_LAYOUT_HALF;
      float* re = key + (apart ? f : 2 * f);
      float* im = key + (apart ? f + n_pairs : 2 * f + 1);
      const double angle = (double)s->inv_freq[f] * (i % n_tokens);
      const double turned = *re * cos(angle) - *im * sin(angle);
      *im = (float)(*re * sin(angle) + *im * cos(angle));
      *re = (float)turned;
    }
    s->given[i] = (float)test_random_below(random, 640) / 64.0f - 3.0f;
  }
  s->view = (kvevict_view)KVEVICT_VIEW_INIT;
  s->view.n_kv_heads = kHeads;
  s->view.k =
      kvevict_plane_head_major(s->keys, KVEVICT_DTYPE_F32, n_tokens, dim);
  s->scores_plane = test_floats_plane(s->given, n_tokens);
  s->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  s->inputs.scores = &s->scores_plane;
  s->layer = test_layer(kHeads, kHeads, dim, 0);
  s->geometry = test_geometry(1, n_tokens, &s->layer);
  s->geometry.rope_inv_freq = s->inv_freq;
  s->geometry.rope_inv_freq_len = n_pairs;
  s->geometry.rope_layout = layout;
  return s;
}

static void Score(const scene* s, const char* target, const char* policy,
                  uint32_t n_threads, float* scores) {
  test_plan* p = test_plan_create_for(target, policy, &s->geometry,
                                      KVEVICT_OPERATION_SCORE, n_threads);
  test_plan_poison(p, 0xFF);
  kvevict_score_job job =
      test_score_job(s->n_tokens, &s->view, &s->inputs, scores, kHeads);
  job.token_counts = s->counts;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  test_plan_destroy(p);
}

static uint32_t CountOf(const scene* s, uint32_t head) {
  return s->counts == NULL ? s->n_tokens : s->counts[head];
}

/* Writes the leverages of slots [sink, n - recent) of a head. */
static void Oracle(const scene* s, uint32_t head, uint32_t sink,
                   uint32_t recent, double* out) {
  const uint32_t n = CountOf(s, head) - sink - recent;
  int32_t positions[kMostTokens];
  for (uint32_t i = 0; i < n; ++i) positions[i] = (int32_t)(sink + i);
  const oracle_leverage in = {
      n,
      s->dim,
      s->keys + ((size_t)head * s->n_tokens + sink) * s->dim,
      positions,
      s->inv_freq,
      s->n_pairs,
      s->layout == KVEVICT_ROPE_LAYOUT_INTERLEAVED,
      NULL,
      0};
  oracle_leverage_scores(&in, out);
}

/* A leverage is at most 1. Keys are turned back in f32: each element errs by 2^-22 of
 * its size, up to 24. |y| is at most 1, and what an error adds to y is divided by the
 * square root of the smallest eigenvalue of the Gram matrix, at least that of the ridge:
 * 2 * 24 * 2^-22 * sqrt(dim) / sqrt(0.01). */
static double Bound(const scene* s) {
  return 2 * 24 * 0x1p-22 * sqrt(s->dim) / 0.1;
}

Test(score_leverage, matches_the_oracle_on_every_target) {
  static const struct {
    uint32_t n_tokens, dim, n_pairs;
    kvevict_rope_layout layout;
  } kCases[] = {{1, 8, 4, KVEVICT_ROPE_LAYOUT_HALF},
                {2, 8, 4, KVEVICT_ROPE_LAYOUT_INTERLEAVED},
                {31, 64, 32, KVEVICT_ROPE_LAYOUT_HALF},
                {32, 33, 7, KVEVICT_ROPE_LAYOUT_HALF},
                {33, 33, 7, KVEVICT_ROPE_LAYOUT_INTERLEAVED},
                {210, 72, 36, KVEVICT_ROPE_LAYOUT_INTERLEAVED},
                {210, 5, 1, KVEVICT_ROPE_LAYOUT_HALF}};
  test_random random = test_random_start("score_leverage");
  for (size_t c = 0; c < sizeof kCases / sizeof *kCases; ++c) {
    scene* s = Draw(kCases[c].n_tokens, kCases[c].dim, kCases[c].n_pairs,
                    kCases[c].layout, &random);
    const char* target;
    for (uint32_t at = 0; (target = kvevict_simd_target_at(at)) != NULL; ++at) {
      for (int i = 0; i < 2; ++i) {
        const uint32_t sink = i == 0 || s->n_tokens < 10 ? 0 : 4;
        const uint32_t recent = i == 0 || s->n_tokens < 10 ? 0 : 3;
        float scores[kHeads * kMostTokens];
        char policy[64];
        snprintf(policy, sizeof policy, "leverage:sink=%u,recent=%u", sink,
                 recent);
        Score(s, target, policy, 2, scores);
        for (uint32_t h = 0; h < kHeads; ++h) {
          double expected[kMostTokens];
          Oracle(s, h, sink, recent, expected);
          for (uint32_t t = 0; t < s->n_tokens; ++t) {
            const bool is_end = t < sink || t >= s->n_tokens - recent;
            const double wanted = is_end ? 0.0 : expected[t - sink];
            const double got = scores[h * s->n_tokens + t];
            EXPECT(fabs(got - wanted) <= (is_end ? 0.0 : Bound(s)),
                   "%s, case %zu, %s: head %u, token %u: %.9g, not %.9g",
                   target, c, policy, h, t, got, wanted);
          }
        }
      }
    }
    free(s);
  }
}

Test(score_leverage, is_the_same_for_any_number_of_threads_and_heads_lengths) {
  test_random random = test_random_start("score_leverage threads");
  scene* s = Draw(150, 64, 32, KVEVICT_ROPE_LAYOUT_HALF, &random);
  static const uint32_t kCounts[kHeads] = {150, 61};
  s->counts = kCounts;
  float one[kHeads * kMostTokens], three[kHeads * kMostTokens];
  Score(s, NULL, "leverage:sink=0", 1, one);
  Score(s, NULL, "leverage:sink=0", 3, three);
  for (uint32_t h = 0; h < kHeads; ++h) {
    double expected[kMostTokens];
    Oracle(s, h, 0, 0, expected);
    for (uint32_t t = 0; t < kCounts[h]; ++t) {
      const float got = one[h * s->n_tokens + t];
      EXPECT(got == three[h * s->n_tokens + t], "head %u, token %u: %g and %g",
             h, t, (double)got, (double)three[h * s->n_tokens + t]);
      EXPECT(fabs(got - expected[t]) <= Bound(s),
             "head %u, token %u: %g, not %g", h, t, (double)got, expected[t]);
    }
  }
  free(s);
}

/* A Gram matrix that f64 cannot factor with the first ridges is one of huge keys. NaN
 * makes a head NaN, and no other. */
Test(score_leverage, of_nan_and_of_huge_keys) {
  test_random random = test_random_start("score_leverage nan");
  scene* s = Draw(90, 16, 8, KVEVICT_ROPE_LAYOUT_HALF, &random);
  for (uint32_t i = 0; i < s->n_tokens * s->dim; ++i) {
    s->keys[i] = 1e9f * (float)(i / s->dim % 2);
  }
  s->keys[(size_t)s->n_tokens * s->dim + 700] = NAN;
  float scores[kHeads * kMostTokens];
  Score(s, NULL, "leverage:sink=0", 1, scores);
  for (uint32_t t = 0; t < s->n_tokens; ++t) {
    EXPECT(isnan(scores[t]) || (scores[t] >= 0.0f && scores[t] <= 1.0f),
           "huge, token %u: %g", t, (double)scores[t]);
    EXPECT(isnan(scores[s->n_tokens + t]), "NaN, token %u: %g", t,
           (double)scores[s->n_tokens + t]);
  }
  free(s);
}

/* Scores of one number have no deviation: it counts as 1e-6. */
Test(score_leverage, standardises_over_all_heads_and_adds_leverage) {
  static const struct {
    const char* policy;
    double blend;
    bool standardizes;
  } kCases[] = {{"custom:sink=3,recent=5,standardize=yes", 0.0, true},
                {"custom:sink=3,recent=5,leverage=0.75", 0.75, false},
                {"custom:sink=3,recent=5,budget=0.3,standardize=yes,leverage=2,"
                 "leverage_scale=evicted",
                 1.4, true},
                {"custom:sink=3,recent=5,budget=30,standardize=yes,leverage=2,"
                 "leverage_scale=evicted",
                 2.0 * (1.0 - 30.0 / 120.0), true}};
  enum { kN = 120, kMiddle = kN - 8 };
  test_random random = test_random_start("score_leverage standardize");
  scene* s = Draw(kN, 24, 12, KVEVICT_ROPE_LAYOUT_HALF, &random);
  s->given[50] = INFINITY;
  s->given[60] = NAN;
  for (size_t c = 0; c < sizeof kCases / sizeof *kCases; ++c) {
    float scores[kHeads * kMostTokens];
    Score(s, NULL, kCases[c].policy, 2, scores);
    double given[kHeads * kMiddle], leverage[kHeads * kMiddle];
    uint32_t n_finite = 0;
    for (uint32_t h = 0; h < kHeads; ++h) {
      Oracle(s, h, 3, 5, leverage + h * kMiddle);
      for (uint32_t t = 3; t < kN - 5; ++t) {
        const float v = s->given[h * kN + t];
        if (isfinite(v)) given[n_finite++] = v;
      }
    }
    oracle_normalise(leverage, kHeads * kMiddle);
    if (kCases[c].standardizes) oracle_normalise(given, n_finite);
    n_finite = 0;
    for (uint32_t h = 0; h < kHeads; ++h) {
      for (uint32_t t = 3; t < kN - 5; ++t) {
        const float v = s->given[h * kN + t];
        const double got = scores[h * kN + t];
        if (!isfinite(v)) {
          EXPECT(isnan(v) ? isnan(got) : got == INFINITY, "%s, token %u: %g",
                 kCases[c].policy, t, got);
          continue;
        }
        const double wanted =
            given[n_finite++] + kCases[c].blend * leverage[h * kMiddle + t - 3];
        /* z of leverage errs by that of leverage over the deviation. */
        EXPECT(fabs(got - wanted) <= 1e-4,
               "%s, head %u, token %u: %.9g, not %.9g", kCases[c].policy, h, t,
               got, wanted);
      }
    }
  }
  for (int i = 0; i < kHeads * kN; ++i) s->given[i] = 7.0f;
  float scores[kHeads * kMostTokens];
  Score(s, NULL, "custom:sink=0,standardize=yes", 1, scores);
  for (int i = 0; i < kHeads * kN; ++i) {
    EXPECT(scores[i] == 0.0f, "equal scores: %g", (double)scores[i]);
  }
  free(s);
}

Test(score_leverage, needs_what_it_reads) {
  test_random random = test_random_start("score_leverage errors");
  scene* s = Draw(40, 16, 8, KVEVICT_ROPE_LAYOUT_HALF, &random);
  kvevict_context* const context = test_context();
  static const char* const kPolicies[] = {"leverage", "custom:leverage=1"};
  for (int i = 0; i < 2; ++i) {
    kvevict_plan* plan = NULL;
    s->geometry.rope_inv_freq = NULL;
    s->geometry.rope_inv_freq_len = 0;
    EXPECT_INVALID(kvevict_plan_create(context, &s->geometry,
                                       test_policy(kPolicies[i]), NULL, &plan),
                   "rope_inv_freq is NULL", "leverage");
    s->geometry.rope_inv_freq = s->inv_freq;
    s->geometry.rope_inv_freq_len = s->n_pairs;
    s->layer.k_head_dim = 257;
    EXPECT_INVALID(kvevict_plan_create(context, &s->geometry,
                                       test_policy(kPolicies[i]), NULL, &plan),
                   "k_head_dim 257 > 256", "leverage");
    s->layer.k_head_dim = 16;
    kvevict_need need = KVEVICT_NEED_NONE;
    EXPECT_OK(kvevict_policy_need(test_policy(kPolicies[i]), KVEVICT_INPUT_KEYS,
                                  &need));
    EXPECT(need == KVEVICT_NEED_REQUIRED, "%s: keys %d", kPolicies[i], need);
    EXPECT_OK(kvevict_policy_need(test_policy(kPolicies[i]),
                                  KVEVICT_INPUT_POSITIONS, &need));
    EXPECT(need == KVEVICT_NEED_OPTIONAL, "%s: positions %d", kPolicies[i],
           need);
  }
  EXPECT_NO_POLICY("snapkv:draw=yes,standardize=yes",
                   "draw yes with standardize yes");
  EXPECT_NO_POLICY("snapkv:draw=yes,leverage=1", "draw yes with leverage");
  EXPECT_NO_POLICY("snapkv:ends=out", "ends");
  free(s);
}
