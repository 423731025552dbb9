/* kvevict_score() by reference queries, alone and beside the window's. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/scene.h"
#include "tests/oracle/scores.h"

/* A scene with reference queries [rows, n_q_heads, k_head_dim]. */
typedef struct reference_scene {
  test_scene* scene;
  uint32_t n_rows;
  uint8_t* bytes;
  kvevict_plane plane;
  int32_t* positions; /* NULL: behind all slots */
  kvevict_signal_inputs inputs;
} reference_scene;

static reference_scene Create(const test_scene_spec* spec, bool has_positions,
                              test_random* random) {
  reference_scene r = {.scene =
                           test_scene_create(spec, test_random_u64(random))};
  r.n_rows = r.scene->plan->policy.reference;
  const uint32_t size = test_element_bytes(spec->q_dtype);
  const size_t n = (size_t)r.n_rows * spec->n_q_heads * spec->head_dim;
  r.bytes = malloc(n * size);
  for (size_t i = 0; i < n; ++i) {
    test_store(spec->q_dtype, 2.0f * test_random_normal(random),
               r.bytes + i * size);
  }
  r.plane = kvevict_plane_token_major(r.bytes, spec->q_dtype, spec->n_q_heads,
                                      spec->head_dim);
  if (has_positions) {
    r.positions = malloc(r.n_rows * sizeof(int32_t));
    for (uint32_t i = 0; i < r.n_rows; ++i) {
      r.positions[i] =
          (int32_t)test_random_below(random, spec->n_tokens * 5 / 4 + 1);
    }
  }
  r.inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  /* Queries that are not read may be missing. */
  const bool alone = r.scene->plan->policy.reference_weight == 1.0;
  r.inputs.queries = alone ? NULL : &r.scene->queries;
  return r;
}

/* The planes lie in the scene, which must not move after this. */
static const kvevict_signal_inputs* Inputs(reference_scene* r) {
  r->inputs.n_reference_rows = r->n_rows;
  r->inputs.reference_queries = &r->plane;
  r->inputs.reference_positions = r->positions;
  return &r->inputs;
}

static void Destroy(reference_scene* r) {
  test_scene_destroy(r->scene);
  free(r->bytes);
  free(r->positions);
}

static kvevict_status Score(const reference_scene* r,
                            const kvevict_signal_inputs* inputs,
                            float* scores) {
  const test_scene* s = r->scene;
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = s->n_tokens;
  job.view = &s->cache->view;
  job.inputs = inputs;
  job.scores = scores;
  job.scores_len = test_scene_scores_len(s);
  test_plan_poison(s->plan, 0xff);
  const kvevict_status status = test_score_jobs(s->plan, &job, 1);
  test_plan_check(s->plan);
  return status;
}

/* Rows [n_q_heads, n_rows, k_head_dim] of a plane, and the largest norm. */
static float* Read(const kvevict_plane* plane, uint32_t n_heads,
                   uint32_t n_rows, double* largest) {
  const uint32_t dim = plane->head_dim;
  float* rows = malloc(sizeof(float) * ((size_t)n_heads * n_rows * dim + 1));
  for (uint32_t i = 0; i < n_heads * n_rows; ++i) {
    const uint8_t* from = (const uint8_t*)(uintptr_t)plane->data +
                          i / n_rows * plane->head_stride_bytes +
                          i % n_rows * plane->token_stride_bytes;
    double norm = 0.0;
    for (uint32_t e = 0; e < dim; ++e) {
      const float q =
          test_load(plane->dtype, from + e * test_element_bytes(plane->dtype));
      rows[(size_t)i * dim + e] = q;
      norm += (double)q * q;
    }
    *largest = fmax(*largest, norm);
  }
  return rows;
}

/* The tolerance is that of score_test.c: the error of a logit and of the row's sum,
 * and some units for all that follows. */
static double* OracleScores(const reference_scene* r, double* tolerance) {
  const test_scene* s = r->scene;
  const kvevict_layer_geometry* g = &s->plan->layer;
  const oracle_policy* policy = &s->plan->policy;
  double q_max = 0.0, k_max = 0.0;
  float* queries = Read(&s->queries, g->n_q_heads, policy->window, &q_max);
  float* reference = Read(&r->plane, g->n_q_heads, r->n_rows, &q_max);
  float* keys =
      malloc(sizeof(float) * g->n_kv_heads * s->n_tokens * g->k_head_dim);
  test_cache_keys(s->cache, s->n_tokens, keys);
  for (size_t i = 0; i < (size_t)g->n_kv_heads * s->n_tokens; ++i) {
    double norm = 0.0;
    for (uint32_t e = 0; e < g->k_head_dim; ++e) {
      norm += (double)keys[i * g->k_head_dim + e] * keys[i * g->k_head_dim + e];
    }
    k_max = fmax(k_max, norm);
  }
  const double scale = 1.0 / sqrt((double)g->k_head_dim);
  const oracle_attention attention = {
      g->n_q_heads,  g->n_kv_heads, s->n_tokens,  policy->window,
      g->k_head_dim, scale,         queries,      keys,
      policy,        reference,     r->positions, NULL};
  double* weights = malloc(sizeof(double) * g->n_q_heads * s->n_tokens);
  double* scores = malloc(sizeof(double) * test_scene_scores_len(s));
  oracle_window_weights(&attention, weights);
  oracle_shape_scores(policy, &attention, weights, scores);
  const double logit = scale * sqrt(q_max * k_max); /* Cauchy-Schwarz */
  *tolerance = 0x1p-24 * (2.0 * logit * sqrt(g->k_head_dim + 1.0) + 32.0);
  free(queries);
  free(reference);
  free(keys);
  free(weights);
  return scores;
}

static void ExpectOracle(const test_scene_spec* spec, bool has_positions,
                         test_random* random) {
  reference_scene r = Create(spec, has_positions, random);
  double tolerance;
  double* expected = OracleScores(&r, &tolerance);
  float* scores = malloc(test_scene_scores_len(r.scene) * sizeof(float));
  EXPECT_OK(Score(&r, Inputs(&r), scores));
  for (size_t i = 0; i < test_scene_scores_len(r.scene); ++i) {
    if (isinf(expected[i])) {
      EXPECT(scores[i] == INFINITY, "%s: score %zu of the window is %g",
             spec->policy, i, (double)scores[i]);
      continue;
    }
    EXPECT(
        fabs(scores[i] - expected[i]) <=
            tolerance * fabs(expected[i]) + 0x1p-100,
        "%s, %u/%u heads of %u, %u tokens, q %d k %d, %s, positions %d: score "
        "%zu is %.9g, not %.9g (tolerance %.2g)",
        spec->policy, spec->n_q_heads, spec->n_kv_heads, spec->head_dim,
        spec->n_tokens, (int)spec->q_dtype, (int)spec->k_dtype,
        test_layout_name(spec->layout), has_positions, i, (double)scores[i],
        expected[i], tolerance);
  }
  free(scores);
  free(expected);
  Destroy(&r);
}

Test(score, reference_agrees_with_the_oracle) {
  test_random random = test_random_start("score reference");
  static const uint32_t kGroups[] = {1, 3, 4, 8};
  static const uint32_t kDims[] = {1, 3, 16, 31, 64, 65, 128};
  static const uint32_t kWindows[] = {1, 2, 8, 31, 32};
  static const uint32_t kRows[] = {1, 2, 7, 16, 33, 70};
  static const char* const kWeights[] = {"1", "0.5", "0.125", "0.9"};
  static const char* const kPools[] = {"none", "avg7", "max7"};
  static const char* const kReduces[] = {"mean", "max", "sum"};
  static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                         KVEVICT_DTYPE_BF16};
  for (int i = 0; i < 250; ++i) {
    const uint32_t window = kWindows[test_random_below(&random, 5)];
    const uint32_t kv_heads = test_random_between(&random, 1, 3);
    const bool of_logits = test_random_below(&random, 4) == 0;
    const bool of_rows = !of_logits && test_random_below(&random, 3) == 0;
    const char* const pool = kPools[test_random_below(&random, 3)];
    char policy[280];
    snprintf(policy, sizeof policy,
             "snapkv:window=%u,pool=%s,edge=%s,rows=%s,group=%s,order=%s,"
             "keep_window=%s,row_weight=%s,softmax=%s,reference=%u,"
             "reference_weight=%s",
             window, pool, of_rows && pool[0] != 'm' ? "mass" : "pad",
             kReduces[test_random_below(&random, 3)],
             of_logits ? "max" : kReduces[test_random_below(&random, 3)],
             of_logits                   ? "reduce-logits"
             : of_rows                   ? "pool-rows"
             : test_random_coin(&random) ? "reduce-pool"
                                         : "pool-reduce",
             test_random_coin(&random) ? "yes" : "no",
             test_random_below(&random, 4) == 0 ? "past" : "none",
             test_random_below(&random, 4) == 0 ? "past" : "causal",
             kRows[test_random_below(&random, 6)],
             kWeights[test_random_below(&random, 4)]);
    test_scene_spec spec = test_scene_of(
        policy, kv_heads * kGroups[test_random_below(&random, 4)], kv_heads,
        kDims[test_random_below(&random, 7)],
        window + test_random_below(&random, i % 8 == 0 ? 1200 : 150));
    spec.q_dtype = kTypes[test_random_below(&random, 3)];
    spec.k_dtype = kTypes[test_random_below(&random, 3)];
    spec.layout = (test_layout)test_random_below(&random, TEST_N_LAYOUTS);
    spec.n_threads = 1 + (uint32_t)i % 3;
    ExpectOracle(&spec, test_random_coin(&random), &random);
  }
}

static test_scene_spec Small(void) {
  return test_scene_of("snapkv:window=4,pool=none,keep_window=no,reference=2",
                       2, 1, 8, 20);
}

/* By hand: queries 1 and 0 over keys 0 and ln 3 give 1/4 and 3/4, and halves. */
Test(score, reference_by_hand) {
  const char* const kPolicies[] = {"1", "0.25"};
  /* Window row 0 sees key 0 alone, row 1 both. */
  const float kExpected[2][2] = {
      {0.375f, 0.625f},
      {0.75f * 0.625f + 0.25f * 0.375f, 0.75f * 0.375f + 0.25f * 0.625f}};
  test_random random = test_random_start("score reference by hand");
  for (int i = 0; i < 2; ++i) {
    char policy[120];
    snprintf(policy, sizeof policy,
             "snapkv:window=2,pool=none,keep_window=no,reference=2,"
             "reference_weight=%s",
             kPolicies[i]);
    test_scene_spec spec = test_scene_of(policy, 1, 1, 1, 2);
    spec.layout = TEST_HEAD_MAJOR;
    spec.softmax_scale = 1.0f;
    reference_scene r = Create(&spec, false, &random);
    test_cache* cache = r.scene->cache;
    test_cache_set(cache, &cache->view.k, 0, 0, 0, 0.0f);
    test_cache_set(cache, &cache->view.k, 1, 0, 0, logf(3.0f));
    const float kRows[2] = {1.0f, 0.0f};
    for (int row = 0; row < 2; ++row) {
      test_store(KVEVICT_DTYPE_F32, kRows[row], r.bytes + 4 * row);
      test_store(KVEVICT_DTYPE_F32, row == 0 ? 5.0f : 1.0f,
                 r.scene->query_bytes + 4 * row);
    }
    float scores[2];
    EXPECT_OK(Score(&r, Inputs(&r), scores));
    for (int j = 0; j < 2; ++j) {
      EXPECT(fabsf(scores[j] - kExpected[i][j]) <= 1e-6f, "score %d is %g", j,
             (double)scores[j]);
    }
    Destroy(&r);
  }
}

/* NaN does what it does in the window: in a key to all rows that see it. */
Test(score, reference_rows_do_not_see_later_keys) {
  test_random random = test_random_start("score reference mask");
  const test_scene_spec spec = Small();
  reference_scene r = Create(&spec, true, &random);
  r.positions[0] = 3;
  r.positions[1] = 9;
  test_cache_set(r.scene->cache, &r.scene->cache->view.k, 10, 0, 0, NAN);
  float scores[20];
  EXPECT_OK(Score(&r, Inputs(&r), scores));
  float sum = 0.0f;
  for (int i = 0; i < 20; ++i) {
    EXPECT(i < 10 ? scores[i] > 0.0f : scores[i] == 0.0f, "score %d is %g", i,
           (double)scores[i]);
    sum += scores[i];
  }
  EXPECT(fabsf(sum - 1.0f) <= 1e-5f, "a sum of %g", (double)sum);
  r.positions[1] = 10;
  EXPECT_OK(Score(&r, Inputs(&r), scores));
  EXPECT(isnan(scores[0]) && isnan(scores[10]) && scores[11] == 0.0f,
         "%g, %g, %g", (double)scores[0], (double)scores[10],
         (double)scores[11]);
  test_store(KVEVICT_DTYPE_F32, NAN, r.bytes);
  r.positions[1] = 9;
  EXPECT_OK(Score(&r, Inputs(&r), scores));
  EXPECT(isnan(scores[3]) && scores[9] > 0.0f, "%g, %g", (double)scores[3],
         (double)scores[9]);
  Destroy(&r);
}

Test(score, reference_is_checked) {
  test_random random = test_random_start("score reference errors");
  const test_scene_spec spec = Small();
  reference_scene r = Create(&spec, true, &random);
  (void)Inputs(&r);
  float scores[20];
  GUARD(scores);
  kvevict_signal_inputs inputs = r.inputs;
  inputs.reference_queries = NULL;
  EXPECT_INVALID(Score(&r, &inputs, scores), "inputs.reference_queries is NULL",
                 "reference 2");
  inputs = r.inputs;
  inputs.n_reference_rows = 3;
  EXPECT_INVALID(Score(&r, &inputs, scores),
                 "inputs.n_reference_rows 3 is not reference 2");
  inputs.n_reference_rows = 2;
  r.plane.head_dim = 7;
  EXPECT_INVALID(Score(&r, &inputs, scores), "reference_queries.head_dim 7",
                 "8");
  r.plane.head_dim = 8;
  r.plane.dtype = KVEVICT_DTYPE_F16;
  EXPECT_INVALID(Score(&r, &inputs, scores), "reference_queries.dtype");
  r.plane.dtype = KVEVICT_DTYPE_F32;
  r.plane.head_stride_bytes = 0;
  EXPECT_INVALID(Score(&r, &inputs, scores),
                 "reference_queries.head_stride_bytes is 0 for 2 heads");
  r.plane.head_stride_bytes = 32;
  r.plane.token_stride_bytes = 0;
  EXPECT_INVALID(Score(&r, &inputs, scores),
                 "reference_queries.token_stride_bytes is 0 for 2 rows");
  r.plane.token_stride_bytes = 64;
  r.positions[1] = -1;
  EXPECT_INVALID(Score(&r, &inputs, scores), "reference_positions[1] -1 < 0");
  r.positions[1] = INT32_MAX;
  inputs.reference_positions =
      (const int32_t*)(const void*)((const char*)r.positions + 2);
  EXPECT_INVALID(Score(&r, &inputs, scores), "reference_positions",
                 "is not aligned to 4");
  EXPECT_UNTOUCHED(scores);
  inputs = r.inputs;
  EXPECT_OK(Score(&r, &inputs, scores));
  Destroy(&r);
}

/* Policies that take none say so. */
Test(score, reference_is_refused_by_policies_without) {
  const struct {
    const char* policy;
    const char* why;
  } kCases[] = {{"snapkv:window=4", "policy snapkv has reference 0"},
                {"knorm", "policy knorm has no reference queries"},
                {"non-causal:block=4,weight=none",
                 "policy non-causal has no reference queries"}};
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    test_random random = test_random_start("score reference refused");
    test_scene_spec spec = Small();
    reference_scene r = Create(&spec, false, &random);
    spec.policy = kCases[i].policy;
    test_scene* other = test_scene_create(&spec, 1);
    test_scene* const own = r.scene;
    r.scene = other;
    (void)Inputs(&r);
    r.inputs.queries = &other->queries;
    float scores[20];
    EXPECT_INVALID(Score(&r, &r.inputs, scores),
                   "inputs.n_reference_rows 2 of reference_queries",
                   kCases[i].why);
    test_scene_destroy(other);
    r.scene = own;
    Destroy(&r);
  }
}

Test(score, reference_needs_are_told) {
  const struct {
    const char* text;
    kvevict_need queries, reference;
    uint32_t n_query_rows;
  } kCases[] = {
      {"snapkv:window=4", KVEVICT_NEED_REQUIRED, KVEVICT_NEED_NONE, 4},
      {"snapkv:window=4,reference=3", KVEVICT_NEED_NONE, KVEVICT_NEED_REQUIRED,
       0},
      {"snapkv:window=4,reference=3,reference_weight=0.5",
       KVEVICT_NEED_REQUIRED, KVEVICT_NEED_REQUIRED, 4},
      {"knorm", KVEVICT_NEED_NONE, KVEVICT_NEED_NONE, 0}};
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    kvevict_policy* policy = NULL;
    EXPECT_OK(kvevict_policy_create(kCases[i].text, &policy));
    kvevict_need need = KVEVICT_NEED_OPTIONAL;
    EXPECT_OK(kvevict_policy_need(policy, KVEVICT_INPUT_QUERIES, &need));
    EXPECT(need == kCases[i].queries, "%s: queries %d", kCases[i].text, need);
    EXPECT_OK(
        kvevict_policy_need(policy, KVEVICT_INPUT_REFERENCE_QUERIES, &need));
    EXPECT(need == kCases[i].reference, "%s: reference %d", kCases[i].text,
           need);
    kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
    EXPECT_OK(kvevict_policy_resolve(policy, 100, &resolved));
    EXPECT(resolved.n_query_rows == kCases[i].n_query_rows, "%s: %u rows",
           kCases[i].text, resolved.n_query_rows);
    kvevict_policy_destroy(policy);
  }
  kvevict_policy* policy = NULL;
  EXPECT_INVALID(kvevict_policy_create("cake:reference=2", &policy),
                 "reference 2 with spread 200");
  EXPECT_INVALID(kvevict_policy_create("cake:reference=2,spread=0", &policy),
                 "reference 2 with split cake");
  EXPECT_INVALID(
      kvevict_policy_create("snapkv:reference=2,split=lazy", &policy),
      "reference 2 with split lazy");
  EXPECT_INVALID(kvevict_policy_create("knorm:reference=2", &policy),
                 "reference");
  EXPECT_INVALID(
      kvevict_policy_create("snapkv:reference=2,reference_weight=0", &policy),
      "reference_weight");
}
