#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/scene.h"
#include "tests/oracle/scores.h"

static float Query(const test_scene* s, uint32_t head, uint32_t row,
                   uint32_t e) {
  return test_load(s->queries.dtype,
                   s->query_bytes + head * s->queries.head_stride_bytes +
                       row * s->queries.token_stride_bytes +
                       e * test_element_bytes(s->queries.dtype));
}

/* The scores in double precision, and how far those in f32 may be away, relatively:
 * a weight's error is the error of its logit and of the row's sum, each a sum of
 * head_dim products of f32 rounding (in random directions: times sqrt(head_dim)),
 * and some units for exp, the sums over tokens and rows, and the pooling. */
static double* OracleScores(const test_scene* s, double* tolerance) {
  const kvevict_layer_geometry* g = &s->plan->layer;
  const uint32_t window = s->plan->policy.window;
  float* queries =
      malloc(sizeof(float) * g->n_q_heads * window * g->k_head_dim);
  float* keys =
      malloc(sizeof(float) * g->n_kv_heads * s->n_tokens * g->k_head_dim);
  double* weights = malloc(sizeof(double) * g->n_q_heads * s->n_tokens);
  double* scores = malloc(sizeof(double) * test_scene_scores_len(s));
  double q_max = 0.0, k_max = 0.0;
  float* q = queries;
  for (uint32_t h = 0; h < g->n_q_heads; ++h) {
    for (uint32_t w = 0; w < window; ++w) {
      double norm = 0.0;
      for (uint32_t e = 0; e < g->k_head_dim; ++e) {
        *q = Query(s, h, w, e);
        norm += (double)*q * *q;
        ++q;
      }
      q_max = fmax(q_max, norm);
    }
  }
  test_cache_keys(s->cache, s->n_tokens, keys);
  for (size_t r = 0; r < (size_t)g->n_kv_heads * s->n_tokens; ++r) {
    double norm = 0.0;
    for (uint32_t e = 0; e < g->k_head_dim; ++e) {
      const double k = keys[r * g->k_head_dim + e];
      norm += k * k;
    }
    k_max = fmax(k_max, norm);
  }
  const double scale = g->softmax_scale != 0.0f
                           ? (double)g->softmax_scale
                           : 1.0 / sqrt((double)g->k_head_dim);
  const oracle_attention attention = {.n_q_heads = g->n_q_heads,
                                      .n_kv_heads = g->n_kv_heads,
                                      .n_tokens = s->n_tokens,
                                      .window = window,
                                      .head_dim = g->k_head_dim,
                                      .scale = scale,
                                      .queries = queries,
                                      .keys = keys,
                                      .policy = &s->plan->policy};
  oracle_window_weights(&attention, weights);
  oracle_shape_scores(&s->plan->policy, &attention, weights, scores);
  const double logit = scale * sqrt(q_max * k_max); /* Cauchy-Schwarz */
  *tolerance = 0x1p-24 * (2.0 * logit * sqrt(g->k_head_dim + 1.0) + 32.0);
  free(queries);
  free(keys);
  free(weights);
  return scores;
}

static void ExpectOracle(const test_scene_spec* spec, uint64_t seed) {
  test_scene* s = test_scene_create(spec, seed);
  double tolerance;
  double* expected = OracleScores(s, &tolerance);
  float* scores = test_scene_score(s);
  for (size_t i = 0; i < test_scene_scores_len(s); ++i) {
    if (isinf(expected[i])) {
      EXPECT(scores[i] == INFINITY, "%s: score %zu of the window is %g",
             spec->policy, i, (double)scores[i]);
      continue;
    }
    /* Weights below the smallest normal f32 may vanish. */
    EXPECT(
        fabs(scores[i] - expected[i]) <=
            tolerance * fabs(expected[i]) + 0x1p-100,
        "%s, %u/%u heads of %u, %u tokens, q %d k %d, %s: score %zu is %.9g, "
        "not %.9g (tolerance %.2g)",
        spec->policy, spec->n_q_heads, spec->n_kv_heads, spec->head_dim,
        spec->n_tokens, (int)spec->q_dtype, (int)spec->k_dtype,
        test_layout_name(spec->layout), i, (double)scores[i], expected[i],
        tolerance);
  }
  free(scores);
  free(expected);
  test_scene_destroy(s);
}

static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                       KVEVICT_DTYPE_BF16};

Test(score, agrees_with_the_oracle_at_odd_sizes) {
  test_random random = test_random_start("score oracle");
  static const uint32_t kGroups[] = {1, 3, 4, 8};
  static const uint32_t kDims[] = {1, 3, 16, 31, 64, 65, 80, 128, 192, 257};
  static const uint32_t kWindows[] = {1, 2, 5, 8, 31, 32, 64};
  static const char* const kPools[] = {"none", "avg7", "max7", "avg1", "max63"};
  static const char* const kReduces[] = {"mean", "max", "sum"};
  for (int i = 0; i < 250; ++i) {
    const uint32_t window = kWindows[test_random_below(&random, 7)];
    const uint32_t kv_heads = test_random_between(&random, 1, 3);
    const bool of_logits = test_random_below(&random, 4) == 0;
    const bool of_rows = !of_logits && test_random_below(&random, 3) == 0;
    const char* const pool = kPools[test_random_below(&random, 5)];
    const bool keeps_mass =
        of_rows && pool[0] != 'm' && test_random_coin(&random);
    char policy[240];
    snprintf(policy, sizeof policy,
             "snapkv:window=%u,pool=%s,edge=%s,rows=%s,group=%s,order=%s,"
             "keep_window=%s,row_weight=%s,softmax=%s,prior=%s",
             window, pool,
             keeps_mass                  ? "mass"
             : test_random_coin(&random) ? "pad"
                                         : "shrink",
             kReduces[test_random_below(&random, 3)],
             of_logits ? "max" : kReduces[test_random_below(&random, 3)],
             of_logits                   ? "reduce-logits"
             : of_rows                   ? "pool-rows"
             : test_random_coin(&random) ? "reduce-pool"
                                         : "pool-reduce",
             test_random_coin(&random) ? "yes" : "no",
             test_random_below(&random, 4) == 0 ? "past" : "none",
             test_random_below(&random, 4) == 0 ? "past" : "causal",
             test_random_below(&random, 3) == 0 ? "mean" : "none");
    test_scene_spec spec = test_scene_of(
        policy, kv_heads * kGroups[test_random_below(&random, 4)], kv_heads,
        kDims[test_random_below(&random, 10)],
        window + test_random_below(&random, i % 8 == 0 ? 1200 : 150));
    spec.q_dtype = kTypes[test_random_below(&random, 3)];
    spec.k_dtype = kTypes[test_random_below(&random, 3)];
    spec.layout = (test_layout)test_random_below(&random, TEST_N_LAYOUTS);
    spec.n_threads = 1 + (uint32_t)i % 3;
    spec.softmax_scale = test_random_coin(&random) ? 0.0f : 0.05f;
    ExpectOracle(&spec, test_random_u64(&random));
  }
}

Test(score, agrees_with_the_oracle_around_the_window_length) {
  for (uint32_t extra = 0; extra <= 70; ++extra) {
    test_scene_spec spec =
        test_scene_of("snapkv:window=32", 4, 2, 64, 32 + extra);
    spec.k_dtype = KVEVICT_DTYPE_BF16;
    ExpectOracle(&spec, extra);
  }
}

/* By hand: query 1 and keys 0 and ln 3 at scale 1 give weights 1/4 and 3/4. */
Test(score, two_keys_by_hand) {
  test_scene_spec spec =
      test_scene_of("snapkv:window=1,pool=none,keep_window=no", 1, 1, 1, 2);
  spec.layout = TEST_HEAD_MAJOR;
  spec.softmax_scale = 1.0f;
  test_scene* s = test_scene_create(&spec, 1);
  test_store(KVEVICT_DTYPE_F32, 1.0f, s->query_bytes);
  test_cache_set(s->cache, &s->cache->view.k, 0, 0, 0, 0.0f);
  test_cache_set(s->cache, &s->cache->view.k, 1, 0, 0, logf(3.0f));
  float* scores = test_scene_score(s);
  cr_expect_float_eq(scores[0], 0.25f, 1e-6f);
  cr_expect_float_eq(scores[1], 0.75f, 1e-6f);
  free(scores);
  test_scene_destroy(s);
}

Test(score, a_view_takes_from_the_geometry_what_it_leaves_out) {
  for (int type = 0; type < 3; ++type) {
    test_scene_spec spec = test_scene_of("snapkv:window=16", 8, 2, 48, 203);
    spec.q_dtype = kTypes[type];
    spec.k_dtype = kTypes[type];
    test_scene* s = test_scene_create(&spec, 5);
    float* full = test_scene_score(s);
    kvevict_plane* k = &s->cache->view.k;
    s->cache->view.n_kv_heads = 0;
    k->dtype = KVEVICT_DTYPE_OPAQUE;
    k->head_dim = 0;
    k->token_stride_bytes = k->head_stride_bytes = 0;
    float* brief = test_scene_score(s);
    EXPECT(memcmp(full, brief, test_scene_scores_len(s) * sizeof(float)) == 0,
           "dtype %d: other scores", (int)kTypes[type]);
    free(full);
    free(brief);
    test_scene_destroy(s);
  }
}

Test(score, query_strides_do_not_matter) {
  test_scene_spec spec = test_scene_of("snapkv:window=6", 6, 2, 24, 77);
  spec.q_dtype = KVEVICT_DTYPE_F16;
  test_scene* s = test_scene_create(&spec, 6);
  float* expected = test_scene_score(s);
  const uint8_t* packed = s->query_bytes;
  for (int way = 0; way < 3; ++way) {
    /* [row, head, element] with gaps; elements outermost; everything backwards */
    const int64_t kStrides[3][3] = {
        {6 * 50 + 6, 50, 2}, {2, 12, 72 * 2}, {-6 * 48, -48, -2}};
    uint8_t* bytes = malloc(1 << 16);
    kvevict_plane queries = s->queries;
    queries.token_stride_bytes = kStrides[way][0];
    queries.head_stride_bytes = kStrides[way][1];
    queries.element_stride_bytes = kStrides[way][2];
    uint8_t* base = bytes + (1 << 15) + 1; /* odd address */
    queries.data = (uint64_t)(uintptr_t)base;
    for (int h = 0; h < 6; ++h) {
      for (int w = 0; w < 6; ++w) {
        for (int e = 0; e < 24; ++e) {
          memcpy(base + w * kStrides[way][0] + h * kStrides[way][1] +
                     e * kStrides[way][2],
                 packed + ((h * 6 + w) * 24 + e) * 2, 2);
        }
      }
    }
    float* scores = malloc(test_scene_scores_len(s) * sizeof(float));
    EXPECT_OK(test_score(s->plan, &queries, &s->cache->view, 77, scores,
                         test_scene_scores_len(s)));
    EXPECT(
        memcmp(scores, expected, test_scene_scores_len(s) * sizeof(float)) == 0,
        "query layout %d: other scores", way);
    free(scores);
    free(bytes);
  }
  free(expected);
  test_scene_destroy(s);
}

/* Contexts of all targets live at the same time, and none changes another's. */
Test(score, each_context_has_its_own_simd_target) {
  enum { MAX_TARGETS = 32 };
  const test_scene_spec spec = test_scene_of("snapkv:window=16", 4, 2, 80, 301);
  test_scene* scenes[MAX_TARGETS];
  float* first[MAX_TARGETS];
  uint32_t n = 0;
  for (; kvevict_simd_target_at(n) != NULL && n < MAX_TARGETS; ++n) {
    scenes[n] = test_scene_create_for(kvevict_simd_target_at(n), &spec, 11);
    first[n] = test_scene_score(scenes[n]);
  }
  const size_t n_bytes = test_scene_scores_len(scenes[0]) * sizeof(float);
  for (uint32_t i = 0; i < n; ++i) {
    float* again = test_scene_score(scenes[i]);
    EXPECT(memcmp(first[i], again, n_bytes) == 0, "%s: other scores",
           kvevict_simd_target_at(i));
    free(again);
  }
  /* Sums round otherwise without fused multiply-add and with other vectors. */
  if (n == 1) {
    fprintf(stderr, "skipped: this CPU has one target\n");
    cr_skip_test("one target");
  }
  EXPECT(memcmp(first[0], first[n - 1], n_bytes) != 0, "%s scores like %s",
         kvevict_simd_target_at(0), kvevict_simd_target_at(n - 1));
  for (uint32_t i = 0; i < n; ++i) {
    free(first[i]);
    test_scene_destroy(scenes[i]);
  }
}

Test(score, nan_stays_in_its_head) {
  test_scene_spec spec =
      test_scene_of("snapkv:window=4,pool=none", 4, 2, 16, 40);
  spec.layout = TEST_HEAD_MAJOR;
  test_scene* s = test_scene_create(&spec, 9);
  float* clean = test_scene_score(s);
  test_cache_set(s->cache, &s->cache->view.k, 5, 0, 3, NAN);
  float* scores = test_scene_score(s);
  cr_expect(isnan(scores[5]), "the token with NaN has score %g",
            (double)scores[5]);
  cr_expect(memcmp(scores + 40, clean + 40, 40 * sizeof(float)) == 0,
            "NaN in head 0 changed head 1");
  free(clean);
  free(scores);
  test_scene_destroy(s);
}
