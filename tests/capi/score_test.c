/* kvevict_score() against the oracle, by random policies of every kind. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/scene.h"
#include "tests/capi/support/signals.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/scores.h"

static void ExpectScores(const test_signals* s, const char* policy,
                         uint32_t layer, const uint32_t* counts,
                         const float* got, const double* scores,
                         const double* bounds) {
  for (uint32_t i = 0; i < s->m->spec.n_kv_heads * s->stride; ++i) {
    if (i % s->stride >= counts[i / s->stride]) continue;
    const double want = scores[i];
    const bool is_right =
        !isfinite(want) && isinf(bounds[i]) ? !isfinite(got[i])
        : isnan(want)                       ? isnan(got[i])
        : isinf(want)                       ? got[i] == want
        : fabs(want) > 3.4e38 ? fabsf(got[i]) > 3e38f && isfinite(got[i])
                              : fabs(got[i] - want) <= bounds[i] + 0x1p-100;
    EXPECT(is_right,
           "%s: layer %u, head %u, slot %u of %u, %u/%u heads of %u, q %d k "
           "%d, %s: %.9g, not %.9g to %.3g",
           policy, layer, i / s->stride, i % s->stride, s->stride,
           s->m->spec.n_q_heads, s->m->spec.n_kv_heads, s->m->spec.k_head_dim,
           (int)s->m->spec.q_dtype, (int)s->m->spec.k_dtype,
           test_layout_name(s->m->spec.layout), (double)got[i], want,
           bounds[i]);
  }
}

/* Scores n jobs in any workspace from the least on, with guard bytes behind all memory.
 * The caller frees the jobs' scores. */
static void ScoreJobs(const test_signals* s, kvevict_score_job* jobs,
                      uint32_t n_jobs, test_random* random) {
  const kvevict_workspace size =
      test_workspace(s->m->plan, KVEVICT_OPERATION_SCORE, jobs->n_tokens);
  const size_t bytes =
      size.least_bytes + (size_t)(test_random_unit(random) *
                                  (double)(size.best_bytes - size.least_bytes));
  const size_t n_bytes = (jobs->scores_len + 4) * sizeof(float);
  uint8_t* workspace = test_workspace_memory(bytes);
  memset(workspace, test_random_coin(random) ? 0xFF : TEST_GUARD, bytes);
  memset(workspace + bytes, TEST_GUARD, 64);
  for (uint32_t i = 0; i < n_jobs; ++i) {
    jobs[i].scores = malloc(n_bytes);
    memset(jobs[i].scores, TEST_GUARD, n_bytes);
  }
  EXPECT_OK(kvevict_score(s->m->plan, jobs, n_jobs, workspace, bytes, NULL));
  EXPECT(test_is_filled(workspace + bytes, 64),
         "wrote beyond a workspace of %zu bytes", bytes);
  for (uint32_t i = 0; i < n_jobs; ++i) {
    EXPECT(test_is_filled(jobs[i].scores + jobs[i].scores_len, 16),
           "wrote beyond the scores");
  }
  free(workspace);
}

static float* Score(const test_signals* s, kvevict_score_job job,
                    test_random* random) {
  ScoreJobs(s, &job, 1, random);
  return job.scores;
}

/* The first n slots of a cache in another one. */
static test_cache* InAnyLayout(const test_cache* cache, uint32_t n,
                               test_random* random) {
  test_cache_spec spec = cache->spec;
  spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  test_cache* other = test_cache_create(&spec, random);
  if (spec.n_companions > 0) {
    other->companions[0].role = cache->companions[0].role;
  }
  for (uint32_t c = spec.n_companions; c < cache->view.n_companions; ++c) {
    if (!oracle_has_rows(&cache->companions[c])) {
      other->companions[c] = cache->companions[c];
    }
  }
  other->view.n_companions = cache->view.n_companions;
  test_cache_copy_rows(other, cache, n);
  return other;
}

/* Makes three pairs of keys alike, in all elements or only in the last ones. Then few of
 * many products exceed the threshold. */
static void MakeAlike(test_cache* cache, uint32_t n, test_random* random) {
  const test_cache_spec* spec = &cache->spec;
  const uint32_t dim = spec->k_head_dim;
  if (spec->k_dtype > KVEVICT_DTYPE_BF16) return; /* codes */
  for (int i = 0; i < 3; ++i) {
    const uint32_t slot = test_random_below(random, n);
    const uint32_t like = test_random_below(random, n);
    const uint32_t head = test_random_below(random, spec->n_kv_heads);
    const uint32_t first = test_random_coin(random) ? 0 : dim - (dim + 8) / 9;
    for (uint32_t e = 0; e < dim; ++e) {
      const float both = e < first ? 0.0f : 9.0f * test_random_normal(random);
      const float beside =
          (e < first ? 0.5f : 3.0f) * test_random_normal(random);
      test_cache_set(cache, &cache->view.k, slot, head, e, both + beside);
      test_cache_set(cache, &cache->view.k, like, head, e, both);
    }
  }
}

/* Scores some layers, perhaps one of them twice, in one call. Returns whether the case
 * can be told. most: its slots, at most. */
static bool Try(const char* policy, uint32_t most, test_random* random) {
  enum { kMostJobs = 3 };
  const oracle_policy drawn = oracle_policy_from(policy);
  const uint32_t window = test_has_window(&drawn) ? drawn.window : 0;
  /* Redundancy compares all keys with each other. */
  if (drawn.redundancy > 0.0 && most > 150) most = 260;
  if (most < window) most = window;
  test_signals* s = test_signals_create(policy, 2, most, true, random);
  const oracle_policy* p = &s->m->policy;
  const uint32_t n_heads = s->m->spec.n_kv_heads;
  const uint32_t n = test_random_between(random,
                                         window > 0   ? window
                                         : most > 600 ? most / 2
                                                      : 1,
                                         most);
  const bool by_rows = p->kind == ORACLE_H2O && test_random_coin(random);
  test_model_append(s->m, n);
  test_signals_give(s, n,
                    p->kind == ORACLE_NON_CAUSAL ? n
                    : by_rows ? test_random_between(random, 1, n)
                              : 0,
                    random);
  const uint32_t least = window > 0 ? window : by_rows ? s->n_query_rows : 0;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    test_cache* const cache = s->m->live[layer];
    if (p->redundancy > 0.0) MakeAlike(cache, n, random);
    if (test_random_below(random, 3) == 0) {
      test_signals_make_odd(s, layer, n, random);
    }
    if (s->m->spec.n_companions > 0 && test_random_below(random, 3) == 0) {
      cache->companions[0].role = KVEVICT_ROLE_NONE;
    }
    if (test_random_coin(random)) {
      test_signals_share_numbers(s, layer, random);
    }
    if (test_random_below(random, 4) == 0) {
      test_signals_scatter_queries(s, layer, random);
    }
  }
  const uint32_t n_jobs = 1 + test_random_below(random, kMostJobs);
  kvevict_score_job jobs[kMostJobs];
  uint32_t counts[kMostJobs][4];
  for (uint32_t i = 0; i < n_jobs; ++i) {
    const bool is_ragged = test_random_below(random, 3) == 0;
    const uint32_t layer = test_random_below(random, 2);
    for (uint32_t h = 0; h < 4; ++h) {
      counts[i][h] = is_ragged ? test_random_between(random, least, n) : n;
    }
    jobs[i] = test_score_job(n, &s->m->views[layer], &s->inputs[layer], NULL,
                             n_heads);
    jobs[i].layer = layer;
    jobs[i].n_seen =
        test_random_coin(random) ? 0 : n + test_random_below(random, 1000);
    if (is_ragged) jobs[i].token_counts = counts[i];
  }
  double* scores = malloc(2 * sizeof(double) * n_heads * n);
  double* const bounds = scores + (size_t)n_heads * n;
  bool all_told = true;
  ScoreJobs(s, jobs, n_jobs, random);
  for (uint32_t i = 0; i < n_jobs; ++i) {
    const bool is_told = test_signals_expect(
        s, jobs[i].layer, counts[i], NULL,
        jobs[i].n_seen == 0 ? n : jobs[i].n_seen, scores, bounds);
    kvevict_score_job elsewhere = jobs[i];
    test_cache* const other = InAnyLayout(s->m->live[jobs[i].layer], n, random);
    /* CUDA has other kernels for rows that can be loaded by 16 bytes. */
    if (!test_on_cuda()) elsewhere.view = &other->view;
    float* again = Score(s, elsewhere, random);
    if (is_told) {
      ExpectScores(s, policy, jobs[i].layer, counts[i], jobs[i].scores, scores,
                   bounds);
    }
    for (uint32_t h = 0; h < n_heads; ++h) {
      EXPECT(memcmp(jobs[i].scores + (size_t)h * n, again + (size_t)h * n,
                    counts[i][h] * sizeof *again) == 0,
             "%s: other scores alone, in another workspace and layout", policy);
    }
    all_told = all_told && is_told;
    free(jobs[i].scores);
    free(again);
    test_cache_destroy(other);
  }
  free(scores);
  test_signals_destroy(s);
  return all_told;
}

enum { kCases = 32 };

/* Kinds that have no rank but a place do not score. */
static bool Scores(const char* kind) {
  char pool[TEST_VALUE_TEXT];
  return kvevict_policy_get(test_policy(kind), "pool", pool, sizeof pool,
                            NULL) == KVEVICT_OK;
}

Test(score, of_every_policy_is_the_oracles) {
  test_random random = test_random_start("score oracle");
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n_kinds = 0;
  for (uint32_t k = 0; kvevict_policy_at(k, &info) == KVEVICT_OK; ++k) {
    if (!Scores(info.name)) continue;
    uint32_t n_told = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < kCases; ++i) {
      if (!test_runs(kCases * k + i)) continue;
      ++n;
      static const uint32_t kMost[] = {
          150, TEST_FEW_SLOTS, 100, 20, 150, 60, 500, 30};
      char policy[TEST_POLICY_TEXT];
      test_draw_scoring(info.name, "", &random, policy);
      n_told += Try(policy, i == 15 ? 1300 : kMost[(i + k) % 8], &random);
    }
    EXPECT(n_told + (n < kCases) >= n * 3 / 4, "%s: only %u cases can be told",
           info.name, n_told);
    ++n_kinds;
  }
  EXPECT(n_kinds > 10, "%u policies score", n_kinds);
}

/* ---- Log-sum-exps beside queries ---- */

/* lse[n_q_heads, n_query_rows] of layer 0, in double. Any strides give the same bytes. */
Test(score, of_sums_takes_log_sum_exps) {
  test_random random = test_random_start("score lse");
  for (uint32_t i = 0; i < 30; ++i) {
    if (!test_runs(i)) continue;
    char policy[TEST_POLICY_TEXT];
    test_draw_scoring("h2o", "", &random, policy);
    test_signals* s = test_signals_create(policy, 1, 100, true, &random);
    const test_model_spec* spec = &s->m->spec;
    const uint32_t n = test_random_between(&random, 1, 100);
    test_model_append(s->m, n);
    test_signals_give(s, n, test_random_between(&random, 1, n), &random);
    const uint32_t n_rows = s->n_query_rows, n_heads = spec->n_kv_heads;
    const uint32_t counts[4] = {n, n, n, n};
    float* lse = malloc(sizeof(float) * spec->n_q_heads * n_rows);
    test_signals_lse(s, 0, n, lse);
    kvevict_plane plane = test_floats_plane(lse, n_rows);
    s->inputs[0].row_lse = &plane;
    if (i % 2 == 0) plane.token_stride_bytes = plane.head_stride_bytes = 0;
    double* scores = malloc(2 * sizeof(double) * n_heads * n);
    double* const bounds = scores + (size_t)n_heads * n;
    const kvevict_score_job job =
        test_score_job(n, &s->m->views[0], &s->inputs[0], NULL, n_heads);
    const bool is_told =
        test_signals_expect(s, 0, counts, NULL, n, scores, bounds);
    float* got = Score(s, job, &random);
    if (is_told) ExpectScores(s, policy, 0, counts, got, scores, bounds);
    free(got);
    free(scores);
    free(lse);
    test_signals_destroy(s);
  }
}

/* Those that are given count, not those that could be computed. Rows of +infinity are NaN.
 * Those of -infinity add nothing but NaN if biases may hide all that a row sees. */
Test(score, of_sums_takes_log_sum_exps_as_they_are) {
  enum { kN = 150, kRows = 20 };
  test_random random = test_random_start("score given lse");
  for (uint32_t i = 0; i < 20; ++i) {
    if (!test_runs(i)) continue;
    test_signals* s =
        test_signals_create("h2o:sink=0,recent=0", 1, kN, false, &random);
    test_model_append(s->m, kN);
    test_signals_give(s, kN, kRows, &random);
    const test_model_spec* spec = &s->m->spec;
    const uint32_t n_rows = spec->n_q_heads * kRows;
    float lse[TEST_SIGNAL_HEADS * kRows];
    const kvevict_plane plane = test_floats_plane(lse, kRows);
    s->inputs[0].row_lse = &plane;
    const kvevict_score_job job = test_score_job(
        kN, &s->m->views[0], &s->inputs[0], NULL, spec->n_kv_heads);
    test_signals_lse(s, 0, kN, lse);
    float* plain = Score(s, job, &random);
    for (uint32_t r = 0; r < n_rows; ++r) lse[r] += 1.0f;
    float* less = Score(s, job, &random);
    for (uint32_t t = 0; t < spec->n_kv_heads * kN; ++t) {
      EXPECT(fabs(less[t] * exp(1.0) - plain[t]) <= 1e-5 * plain[t] + 1e-30,
             "slot %u: %g after %g", t, (double)less[t], (double)plain[t]);
    }
    free(less);
    lse[2] = INFINITY;
    less = Score(s, job, &random);
    for (uint32_t t = 0; t < kN; ++t) {
      EXPECT(isnan(less[t]) == (t < kN - kRows + 3), "slot %u: %g", t,
             (double)less[t]);
    }
    free(less);
    for (uint32_t r = 0; r < n_rows; ++r) lse[r] = -INFINITY;
    less = Score(s, job, &random);
    const bool has_biases = spec->n_companions > 0;
    for (uint32_t t = 0; has_biases && t < spec->n_kv_heads * kN; ++t) {
      EXPECT(less[t] == 0.0f, "slot %u: %g", t, (double)less[t]);
    }
    free(less);
    test_cache* const cache = s->m->live[0];
    test_cache_set(cache, &cache->view.k, 9, 0, 0, NAN);
    less = Score(s, job, &random);
    EXPECT(isnan(less[9]), "%g", (double)less[9]);
    free(less);
    free(plain);
    test_signals_destroy(s);
  }
}

/* Errors are 2e-5 of a score at most, even where bounds of rounding allow more. Contexts
 * of all targets live at the same time, and none changes another's. */
Test(score, of_a_window_is_within_2e_5) {
  enum { kN = 4096, kWindow = 64, kHeads = 4, kDim = 128, kMostTargets = 32 };
  const test_scene_spec spec = test_scene_of(
      "snapkv:window=64,pool=none,keep_window=no", kHeads, 1, kDim, kN);
  test_scene* s = test_scene_create(&spec, 3);
  float* const keys = malloc(sizeof(float) * kN * kDim);
  test_cache_keys(s->cache, kN, keys);
  const oracle_attention in = {.n_q_heads = kHeads,
                               .n_kv_heads = 1,
                               .n_tokens = kN,
                               .window = kWindow,
                               .head_dim = kDim,
                               .scale = 1.0 / sqrt(kDim),
                               .queries = (const float*)s->query_bytes,
                               .keys = keys};
  double* const weights = malloc(sizeof(double) * kHeads * kN);
  oracle_window_weights(&in, weights);
  const char* target;
  test_scene* scenes[kMostTargets];
  float* scores[kMostTargets];
  uint32_t n = 0;
  for (; (target = kvevict_simd_target_at(n)) != NULL; ++n) {
    EXPECT(n < kMostTargets, "more than %d targets", kMostTargets);
    scenes[n] = test_scene_create_for(target, &spec, 3);
    scores[n] = test_scene_score(scenes[n]);
    double worst = 0.0;
    for (uint32_t t = 0; t < kN; ++t) {
      double want = 0.0;
      for (uint32_t h = 0; h < kHeads; ++h) want += weights[h * kN + t];
      want /= kHeads * kWindow;
      worst = fmax(worst, fabs(scores[n][t] / want - 1.0));
    }
    fprintf(stderr, "%s: largest relative error %.2g\n", target, worst);
    EXPECT(worst <= 2e-5, "%s: %g", target, worst);
  }
  /* Sums round otherwise without fused multiply-add and with other vectors. */
  EXPECT(n == 1 || memcmp(scores[0], scores[n - 1], kN * sizeof(float)) != 0,
         "the first target scores like the last");
  for (uint32_t i = 0; i < n; ++i) {
    float* again = test_scene_score(scenes[i]);
    EXPECT(memcmp(scores[i], again, kN * sizeof(float)) == 0,
           "%s: other scores", kvevict_simd_target_at(i));
    free(again);
    free(scores[i]);
    test_scene_destroy(scenes[i]);
  }
  free(keys);
  free(weights);
  test_scene_destroy(s);
}

/* ---- Other views and queries ---- */

static const kvevict_dtype kTypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                       KVEVICT_DTYPE_BF16};

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

/* A key with NaN scores NaN by every policy that reads keys, and no other head sees it.
 * Keys whose Gram matrix f64 cannot factor at once are huge ones. */
Test(score, of_nan_and_of_huge_keys) {
  test_random random = test_random_start("score nan");
  kvevict_policy_info info = {.struct_size = sizeof info};
  uint32_t n_kinds = 0;
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    kvevict_need need = KVEVICT_NEED_NONE;
    EXPECT_OK(
        kvevict_policy_need(test_policy(info.name), KVEVICT_INPUT_KEYS, &need));
    if (need != KVEVICT_NEED_REQUIRED) continue;
    if (strcmp(info.name, "lagkv") == 0)
      continue; /* its last keys are no scores */
    enum { kN = 70, kSlot = 25 };
    char policy[TEST_POLICY_TEXT];
    snprintf(policy, sizeof policy, "%s:sink=0", info.name);
    test_signals* s = test_signals_create(policy, 1, kN, false, &random);
    const uint32_t n_heads = s->m->spec.n_kv_heads;
    const bool all_rows = strcmp(info.name, "non-causal") == 0;
    test_model_append(s->m, kN);
    test_signals_give(s, kN, all_rows ? kN : 0, &random);
    const kvevict_score_job job =
        test_score_job(kN, &s->m->views[0], &s->inputs[0], NULL, n_heads);
    float* clean = Score(s, job, &random);
    test_cache* const cache = s->m->live[0];
    test_cache_set(cache, &cache->view.k, kSlot, 0, 0, NAN);
    float* scores = Score(s, job, &random);
    EXPECT(isnan(scores[kSlot]), "%s: %g", policy, (double)scores[kSlot]);
    EXPECT(memcmp(scores + kN, clean + kN, (n_heads - 1) * kN * 4) == 0,
           "%s: another head changed", policy);
    for (uint32_t t = 0; t < kN; ++t) {
      for (uint32_t e = 0; e < s->m->spec.k_head_dim; ++e) {
        test_cache_set(cache, &cache->view.k, t, 0, e, t % 2 * 6e4f);
      }
    }
    free(scores);
    scores = Score(s, job, &random);
    for (uint32_t t = 0; strcmp(info.name, "leverage") == 0 && t < kN; ++t) {
      EXPECT(isnan(scores[t]) || (scores[t] >= 0.0f && scores[t] <= 1.0f),
             "%s: %g", policy, (double)scores[t]);
    }
    free(clean);
    free(scores);
    test_signals_destroy(s);
    ++n_kinds;
  }
  EXPECT(n_kinds > 8, "%u policies read keys", n_kinds);
}

Test(score, takes_up_to_128_jobs) {
  static float scores[KVEVICT_MAX_JOBS][2 * 40], expected[2 * 40];
  static kvevict_score_job jobs[KVEVICT_MAX_JOBS];
  const kvevict_layer_geometry layer = test_layer(2, 2, 4, 0);
  const kvevict_geometry geometry = test_geometry(KVEVICT_MAX_JOBS, 40, &layer);
  test_plan* p = test_plan_create("random:sink=0,budget=5", &geometry,
                                  KVEVICT_OPERATION_SCORE, 1);
  for (uint32_t l = 0; l < KVEVICT_MAX_JOBS; ++l) {
    jobs[l] = (kvevict_score_job)KVEVICT_SCORE_JOB_INIT;
    jobs[l].layer = l;
    jobs[l].n_tokens = 40;
    jobs[l].scores = scores[l];
    jobs[l].scores_len = 80;
  }
  EXPECT_OK(kvevict_score(p->plan, NULL, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_score(p->plan, jobs, 0, NULL, 0, NULL));
  EXPECT_OK(test_score_jobs(p, jobs, KVEVICT_MAX_JOBS));
  for (uint32_t l = 0; l < KVEVICT_MAX_JOBS; l += 9) {
    kvevict_score_job one = jobs[l];
    one.scores = expected;
    EXPECT_OK(test_score_jobs(p, &one, 1));
    EXPECT(memcmp(expected, scores[l], sizeof expected) == 0, "layer %u", l);
  }
  test_plan_destroy(p);
}
