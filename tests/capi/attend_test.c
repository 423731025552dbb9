/* Holds kvevict_attend() against double precision in every layout and dtype, for
 * any workspace, number of threads and SIMD target. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/attention.h"
#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/oracle/attention.h"
#include "tests/oracle/compact.h"

/* The arguments of a call beside the cache. */
typedef struct question {
  const uint32_t* counts;
  uint32_t n_tokens; /* this field and all below have 4 bytes */
  uint32_t group;
  uint32_t n_queries;
  uint32_t v_head_dim; /* for caches without V */
  uint32_t window;
  uint32_t non_causal;
  float scale;
  float softcap;
  int has_sinks;
  uint32_t n_sum_heads; /* 0: none are wanted */
  int has_lse;
  kvevict_dtype q_dtype;
  kvevict_dtype out_dtype;
  uint32_t strides; /* of the planes, see MakeRows() */
} question;

/* A plane [n_heads, n_rows, dim] in memory of its own, with gaps full of guard bytes.
 * Uses up one base-6 digit of `strides`. */
typedef struct rows {
  kvevict_plane plane;
  uint8_t* memory;
  size_t n_bytes;
} rows;

static rows MakeRows(uint32_t n_heads, uint32_t n_rows, uint32_t dim,
                     kvevict_dtype dtype, uint32_t* strides) {
  rows r = {.plane = KVEVICT_PLANE_INIT};
  const int64_t size = oracle_element_bytes(dtype);
  const int64_t row = size * (dim + *strides % 3);
  const int heads_first = *strides / 3 % 2;
  *strides /= 6;
  r.plane.dtype = dtype;
  r.plane.head_dim = dim;
  r.plane.token_stride_bytes = heads_first ? row : row * n_heads;
  r.plane.head_stride_bytes = heads_first ? row * n_rows : row;
  r.n_bytes = (size_t)(row * n_heads * n_rows) + 64;
  r.memory = malloc(r.n_bytes);
  memset(r.memory, TEST_GUARD, r.n_bytes);
  r.plane.data = (uintptr_t)(r.memory + 16);
  return r;
}

static void* ElementOf(const rows* r, uint32_t head, uint32_t row, uint32_t e) {
  return r->memory + 16 + head * r->plane.head_stride_bytes +
         row * r->plane.token_stride_bytes +
         e * oracle_element_bytes(r->plane.dtype);
}

/* Nothing but the rows was written. */
static void ExpectGaps(const rows* r, uint32_t n_heads, uint32_t n_rows) {
  uint8_t* copy = malloc(r->n_bytes);
  memcpy(copy, r->memory, r->n_bytes);
  const size_t n = r->plane.head_dim * oracle_element_bytes(r->plane.dtype);
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t i = 0; i < n_rows; ++i) {
      memset(copy + ((uint8_t*)ElementOf(r, h, i, 0) - r->memory), TEST_GUARD,
             n);
    }
  }
  EXPECT(test_is_filled(copy, r->n_bytes), "written beside the rows");
  free(copy);
}

enum { kMostJobs = 2 };

typedef struct scene {
  const test_cache* cache;
  question q;
  uint32_t n_q_heads;
  uint32_t v_dim;
  rows queries, out, lse, sums;
  float* sinks;
  kvevict_attention_job job;
} scene;

static scene MakeScene(const test_cache* cache, const question* q,
                       test_random* random) {
  const test_cache_spec* spec = &cache->spec;
  scene s = {.cache = cache, .q = *q, .job = KVEVICT_ATTENTION_JOB_INIT};
  s.n_q_heads = spec->n_kv_heads * q->group;
  s.v_dim = spec->v_head_dim == 0 ? q->v_head_dim : spec->v_head_dim;
  uint32_t of = q->strides;
  s.queries =
      MakeRows(s.n_q_heads, q->n_queries, spec->k_head_dim, q->q_dtype, &of);
  s.out = MakeRows(s.n_q_heads, q->n_queries, s.v_dim, q->out_dtype, &of);
  s.lse = MakeRows(s.n_q_heads, q->n_queries, 1, KVEVICT_DTYPE_F32, &of);
  s.sums = MakeRows(q->n_sum_heads, q->n_tokens, 1, KVEVICT_DTYPE_F32, &of);
  s.sinks = malloc(s.n_q_heads * sizeof(float));
  for (uint32_t h = 0; h < s.n_q_heads; ++h) {
    s.sinks[h] = 3.0f * test_random_normal(random);
    for (uint32_t i = 0; i < q->n_queries; ++i) {
      for (uint32_t e = 0; e < spec->k_head_dim; ++e) {
        test_store(q->q_dtype, test_random_normal(random),
                   ElementOf(&s.queries, h, i, e));
      }
    }
  }
  s.job.n_tokens = q->n_tokens;
  s.job.token_counts = q->counts;
  s.job.view = &cache->view;
  s.job.n_q_heads = s.n_q_heads;
  s.job.n_queries = q->n_queries;
  s.job.v_head_dim = s.v_dim;
  s.job.window = q->window;
  s.job.non_causal = q->non_causal;
  s.job.softmax_scale = q->scale;
  s.job.logit_softcap = q->softcap;
  if (q->has_sinks) {
    s.job.sink_logits = s.sinks;
    s.job.sink_logits_len = s.n_q_heads;
  }
  return s;
}

/* Call it once the scene lies where it will stay. */
static const kvevict_attention_job* JobOf(scene* s) {
  s->job.queries = &s->queries.plane;
  s->job.out = &s->out.plane;
  s->job.row_lse = s->q.has_lse ? &s->lse.plane : NULL;
  s->job.n_sum_heads = s->q.n_sum_heads;
  s->job.attention_sums = s->q.n_sum_heads > 0 ? &s->sums.plane : NULL;
  return &s->job;
}

static void FreeScene(scene* s) {
  free(s->queries.memory);
  free(s->out.memory);
  free(s->lse.memory);
  free(s->sums.memory);
  free(s->sinks);
}

static void ExpectClose(double got, double want, double tolerance,
                        const char* what, uint32_t head, uint32_t query,
                        uint32_t e) {
  if (isnan(want) ? isnan(got) : got == want) return;
  EXPECT(fabs(got - want) <= tolerance,
         "%s of head %u, query %u, element %u: %.9g, not %.9g by %.3g", what,
         head, query, e, got, want, tolerance);
}

static void ExpectAttended(const scene* s) {
  const test_cache_spec* spec = &s->cache->spec;
  const question* q = &s->q;
  const kvevict_view* view = &s->cache->view;
  const int has_v = spec->v_head_dim != 0;
  /* CUDA's powers of 2 and logarithms are off by 2 ulp. */
  const double more = test_on_cuda() ? 2.0 : 1.0;
  const double beside = test_on_cuda() ? 1e-6 : 0.0;
  double largest = 0.0;
  const kvevict_plane* const bias = test_bias_plane(view);
  const kvevict_plane* const v = has_v ? &view->v : &view->k;
  const uint32_t n = q->n_tokens;
  float* query = malloc(sizeof(float) * spec->k_head_dim);
  double* out = malloc(sizeof(double) * s->v_dim * 2);
  double* weights = malloc(sizeof(double) * (n + 1) * 4);
  for (uint32_t h = 0; h < spec->n_kv_heads; ++h) {
    const uint32_t held = q->counts == NULL ? n : q->counts[h];
    float* keys = test_cache_rows(s->cache, &view->k, h, 0, held);
    float* values = test_cache_rows(s->cache, v, h, 0, held);
    float* biases =
        bias == NULL ? NULL : test_cache_rows(s->cache, bias, h, 0, held);
    for (uint32_t i = 0; i < held * v->head_dim; ++i) {
      if (i % v->head_dim >= s->v_dim) continue;
      largest = fmax(largest, fabs((double)values[i]));
    }
    const int is_shared = q->n_sum_heads == spec->n_kv_heads;
    memset(weights, 0, sizeof(double) * (n + 1) * 4);
    for (uint32_t g = h * q->group; g < (h + 1) * q->group; ++g) {
      for (uint32_t i = 0; i < q->n_queries; ++i) {
        for (uint32_t e = 0; e < spec->k_head_dim; ++e) {
          query[e] = test_load(q->q_dtype, ElementOf(&s->queries, g, i, e));
        }
        oracle_query in = {.query = query,
                           .keys = keys,
                           .values = values,
                           .n_tokens = held,
                           .k_dim = spec->k_head_dim,
                           .v_dim = s->v_dim,
                           .value_stride = v->head_dim,
                           .slot = (int64_t)held - q->n_queries + i,
                           .window = q->window,
                           .non_causal = (int)q->non_causal,
                           .scale = q->scale == 0.0f
                                        ? 1.0 / sqrt(spec->k_head_dim)
                                        : (double)q->scale,
                           .softcap = (double)q->softcap,
                           .sink = q->has_sinks ? &s->sinks[g] : NULL,
                           .biases = biases};
        oracle_attended want = {.out = out,
                                .out_tolerance = out + s->v_dim,
                                .weights = weights + 2 * n,
                                .weight_tolerance = weights + 3 * n};
        const test_attend_errors errors = test_errors_of((test_attend_shape){
            q->q_dtype, spec->k_dtype, has_v ? spec->v_dtype : spec->k_dtype,
            spec->k_head_dim, s->v_dim, n});
        in.dot_error = errors.dot;
        in.value_error = errors.value;
        oracle_attend(&in, &want);
        for (uint32_t t = 0; t < held; ++t) {
          weights[t] += want.weights[t];
          weights[n + t] += want.weight_tolerance[t];
        }
        for (uint32_t e = 0; e < s->v_dim; ++e) {
          const float got =
              test_load(q->out_dtype, ElementOf(&s->out, g, i, e));
          ExpectClose((double)got, out[e],
                      more * want.out_tolerance[e] +
                          errors.lost_weight * held * largest +
                          test_stored_bound(q->out_dtype, out[e]),
                      "out", g, i, e);
        }
        if (!q->has_lse) continue;
        float lse;
        memcpy(&lse, ElementOf(&s->lse, g, i, 0), sizeof lse);
        ExpectClose((double)lse, want.lse, want.lse_tolerance + beside, "lse",
                    g, i, 0);
      }
      if (q->n_sum_heads == 0) continue;
      if (is_shared && g % q->group != q->group - 1) continue;
      const uint32_t row = is_shared ? h : g;
      const double rounding = q->n_queries * q->group * 0x1p-23;
      for (uint32_t t = 0; t < n; ++t) {
        float got;
        memcpy(&got, ElementOf(&s->sums, row, t, 0), sizeof got);
        ExpectClose(
            (double)got, weights[t],
            more * weights[n + t] + (rounding + 3 * beside) * weights[t],
            "sums", row, t, 0);
      }
      memset(weights, 0, sizeof(double) * 2 * n);
    }
    free(keys);
    free(values);
    free(biases);
  }
  free(query);
  free(out);
  free(weights);
}

/* The least workspace, half and the best give the same bytes, on any number of threads. */
static void Attend(const test_any_context* with, scene* s, uint32_t n_jobs) {
  kvevict_attention_job jobs[kMostJobs];
  uint8_t *first[kMostJobs], *sums[kMostJobs];
  for (uint32_t j = 0; j < n_jobs; ++j) jobs[j] = *JobOf(&s[j]);
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_attend_workspace(with->of_threads[3], jobs, n_jobs, &size));
  const size_t sizes[] = {size.least_bytes,
                          (size.least_bytes + size.best_bytes) / 2,
                          size.best_bytes};
  for (int i = 0; i < 3; ++i) {
    uint8_t* workspace = test_workspace_memory(sizes[i]);
    memset(workspace, 0xff, sizes[i]);
    memset(workspace + sizes[i], TEST_GUARD, 64);
    EXPECT_OK(kvevict_attend(with->of_threads[3 - i], jobs, n_jobs, workspace,
                             sizes[i], NULL));
    EXPECT(test_is_filled(workspace + sizes[i], 64), "written behind");
    free(workspace);
    for (uint32_t j = 0; j < n_jobs; ++j) {
      const rows *out = &s[j].out, *sum = &s[j].sums;
      if (i == 0) {
        first[j] = memcpy(malloc(out->n_bytes), out->memory, out->n_bytes);
        sums[j] = memcpy(malloc(sum->n_bytes), sum->memory, sum->n_bytes);
      }
      EXPECT(memcmp(sums[j], sum->memory, sum->n_bytes) == 0,
             "other sums in %zu of %zu", sizes[i], size.best_bytes);
      EXPECT(memcmp(first[j], out->memory, out->n_bytes) == 0,
             "other bytes in %zu of %zu", sizes[i], size.best_bytes);
    }
  }
  for (uint32_t j = 0; j < n_jobs; ++j) {
    free(first[j]);
    free(sums[j]);
    ExpectGaps(&s[j].out, s[j].n_q_heads, s[j].q.n_queries);
    ExpectGaps(&s[j].lse, s[j].n_q_heads, s[j].q.n_queries);
    ExpectGaps(&s[j].sums, s[j].q.n_sum_heads, s[j].q.n_tokens);
    ExpectAttended(&s[j]);
  }
}

static question Draw(uint32_t n_tokens, uint32_t n_kv_heads, uint32_t k_dim,
                     test_random* random) {
  static const uint32_t groups[] = {1, 4, 8, 3, 5};
  static const uint32_t n_queries[] = {1, 2, 3, 16, 17, 40};
  static const kvevict_dtype dtypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                         KVEVICT_DTYPE_BF16};
  question q = {.n_tokens = n_tokens};
  q.group = groups[test_random_below(random, 5)];
  q.n_queries = n_queries[test_random_below(random, 6)];
  q.v_head_dim = 1 + test_random_below(random, k_dim);
  if (test_random_below(random, 3) == 0) {
    q.window = 1 + test_random_below(random, n_tokens + 2);
  }
  q.non_causal = test_random_below(random, 4) == 0;
  q.scale = test_random_coin(random) ? 0.0f : 0.3f;
  q.softcap = test_random_below(random, 3) == 0 ? 5.0f : 0.0f;
  q.has_sinks = test_random_coin(random);
  q.has_lse = test_random_coin(random);
  const uint32_t n_sums[] = {0, n_kv_heads, n_kv_heads * q.group};
  q.n_sum_heads = n_sums[test_random_below(random, 3)];
  q.q_dtype = dtypes[test_random_below(random, 3)];
  q.out_dtype = dtypes[test_random_below(random, 3)];
  q.strides = test_random_below(random, 6 * 6 * 6 * 6);
  return q;
}

/* Changes one thing about a second job: a field of its question, its length, or its
 * cache's biases. It may also give all slots one scale. CUDA must then not serve both
 * jobs as if they were alike. */
static void Vary(question* q, test_cache* cache, test_random* random) {
  const test_cache_spec* spec = &cache->spec;
  const uint32_t n_heads = spec->n_kv_heads, n = spec->n_companions;
  const question drawn = Draw(q->n_tokens, n_heads, spec->k_head_dim, random);
  const size_t first = offsetof(question, group);
  const size_t at =
      first + 4 * test_random_below(random, (sizeof drawn - first) / 4);
  const uint32_t what = test_random_below(random, 3);
  const bool has_sums = q->n_sum_heads > 0;
  if (what == 0) memcpy((char*)q + at, (const char*)&drawn + at, 4);
  /* Spoilt caches have no sums. Others have a row per KV head or per query head. */
  if (!has_sums) q->n_sum_heads = 0;
  if (q->n_sum_heads > n_heads) q->n_sum_heads = n_heads * q->group;
  if (what == 1) {
    q->counts = NULL;
    q->n_tokens = test_random_below(random, spec->capacity + 1);
  }
  if (what == 2 && n > 0) cache->companions[0].role ^= KVEVICT_ROLE_BIAS;
  if (cache->view.block_size > 0 || test_random_coin(random)) return;
  for (uint32_t c = n; c < cache->view.n_companions; ++c) {
    cache->companions[c].token_stride_bytes = 0; /* one for all slots */
  }
}

/* Attends to a cache, and in a third of the calls also to it or another one, varied. */
static void Try(const test_any_context* with, const test_cache* cache,
                const question* q, test_random* random) {
  test_cache_spec spec = cache->spec;
  if (test_random_below(random, 4) == 0) {
    spec.layout = (test_layout)test_random_below(random, TEST_N_LAYOUTS);
  }
  test_cache* const other = test_cache_create(&spec, random);
  if (spec.n_companions > 0) {
    other->companions[0].role = cache->companions[0].role;
  }
  test_cache second = test_random_coin(random) ? *cache : *other;
  second.view.companions = second.companions;
  question of_second = *q;
  Vary(&of_second, &second, random);
  const uint32_t n = test_random_below(random, 3) == 0 ? kMostJobs : 1;
  const uint32_t at = test_random_below(random, n);
  scene s[kMostJobs];
  s[at] = MakeScene(cache, q, random);
  s[1 - at] = MakeScene(&second, &of_second, random);
  if (test_random_below(random, 8) == 0) s[0].sinks[0] = NAN;
  Attend(with, s, n);
  for (uint32_t j = 0; j < kMostJobs; ++j) FreeScene(&s[j]);
  test_cache_destroy(other);
}

/* NaN and infinity reach only the queries that see them, and only the element of a value. */
static void SpoilOne(test_cache* cache, uint32_t plane, uint32_t n_tokens,
                     test_random* random) {
  static const float kOdd[] = {NAN, INFINITY, -INFINITY};
  const kvevict_plane* const at = test_cache_plane(cache, plane);
  const uint32_t slot = test_random_below(random, n_tokens);
  const uint32_t head = test_random_below(random, cache->spec.n_kv_heads);
  test_cache_set(cache, at, slot, head, test_random_below(random, at->head_dim),
                 kOdd[test_random_below(random, plane == 0 ? 3 : 1)]);
}

static void TryCache(const test_any_context* with, const test_cache_trial* t,
                     test_random* random) {
  const test_cache_spec* spec = &t->cache->spec;
  const int is_readable =
      spec->k_dtype != KVEVICT_DTYPE_OPAQUE &&
      (spec->v_head_dim == 0 || spec->v_dtype != KVEVICT_DTYPE_OPAQUE);
  uint32_t counts[64];
  if (spec->n_companions > 0 && test_random_coin(random)) {
    t->cache->companions[0].role = KVEVICT_ROLE_BIAS;
  }
  question q = Draw(
      t->n_tokens, spec->n_kv_heads,
      spec->k_dtype == KVEVICT_DTYPE_OPAQUE ? 1 : spec->k_head_dim, random);
  if (t->n_lists > 1) {
    for (uint32_t h = 0; h < spec->n_kv_heads; ++h) {
      counts[h] = test_random_below(random, t->n_tokens + 1);
    }
    q.counts = counts;
  }
  const uint32_t n_scales = t->cache->view.n_companions - spec->n_companions;
  if (n_scales > 0 && t->n_tokens > 0 && test_random_below(random, 4) == 0) {
    q.n_sum_heads = 0;
    SpoilOne(t->cache,
             2 + spec->n_companions + test_random_below(random, n_scales),
             t->n_tokens, random);
  }
  if (is_readable) {
    Try(with, t->cache, &q, random);
    return;
  }
  scene s = MakeScene(t->cache, &q, random);
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_FAILS(kvevict_attend_workspace(with->context, JobOf(&s), 1, &size),
               KVEVICT_ERROR_UNSUPPORTED, "opaque", "cannot be read");
  FreeScene(&s);
}

Test(attend, every_layout_and_dtype) {
  test_random random = test_random_start("attend layouts");
  test_try_layouts_and_dtypes(3, &random, TryCache);
  test_try_quantized(&random, TryCache);
}

/* ---- Shapes that models have ---- */

static test_cache* MakeCache(test_layout layout, uint32_t n_heads,
                             uint32_t n_tokens, uint32_t k_dim, uint32_t v_dim,
                             kvevict_dtype dtype, int has_biases,
                             test_random* random) {
  const test_cache_spec spec = {
      .layout = layout,
      .n_kv_heads = n_heads,
      .capacity = n_tokens,
      .k_dtype = dtype,
      .k_head_dim = k_dim,
      .v_dtype = v_dim == 0 ? KVEVICT_DTYPE_OPAQUE : dtype,
      .v_head_dim = v_dim,
      .n_companions = has_biases ? 1 : 0};
  test_cache* cache = test_cache_create(&spec, random);
  if (has_biases) cache->companions[0].role = KVEVICT_ROLE_BIAS;
  return cache;
}

Test(attend, sizes_around_tiles) {
  static const uint32_t sizes[] = {0, 1, 3, 63, 64, 65, 130, 260};
  static const uint32_t dims[] = {16, 40, 64, 128};
  static const kvevict_dtype dtypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F16,
                                         KVEVICT_DTYPE_BF16};
  test_random random = test_random_start("attend sizes");
  for (uint32_t turn = 0; turn < 96; ++turn) {
    if (!test_runs(turn)) continue;
    const test_any_context with = test_draw_context(&random);
    const uint32_t of = test_on_cuda() ? test_random_below(&random, 32) : turn;
    const uint32_t n_tokens = sizes[of % 8];
    const uint32_t dim = dims[of / 8 % 4];
    const test_layout layout = test_random_below(&random, TEST_N_LAYOUTS);
    const kvevict_dtype dtype = dtypes[test_random_below(&random, 3)];
    const uint32_t v_dim = test_random_below(&random, 3) == 0 ? 0 : dim;
    test_cache* cache = MakeCache(layout, 2, n_tokens + 1, dim, v_dim, dtype,
                                  turn / 32 % 2 == 0, &random);
    question q = Draw(n_tokens, 2, dim, &random);
    const bool is_spoilt = test_random_coin(&random);
    if (is_spoilt) q.n_sum_heads = 0;
    /* Values that are keys would be infinite, too, with a weight of 0. */
    if (is_spoilt && v_dim > 0 && n_tokens > 0) {
      SpoilOne(cache, test_random_below(&random, 2), n_tokens, &random);
    }
    Try(&with, cache, &q, &random);
    test_cache_destroy(cache);
  }
}

/* Several spans of slots meet several blocks of queries. The call's first job holds
 * fewer slots. */
Test(attend, long_caches_and_prompts) {
  static const struct {
    test_layout layout;
    uint32_t n_heads, n_tokens, dim, group, n_queries, window;
  } cases[] = {
      {TEST_HEAD_MAJOR, 1, 1100, 32, 2, 1, 0},
      {TEST_TOKEN_MAJOR, 8, 1100, 64, 4, 1, 0},
      {TEST_TOKEN_MAJOR, 8, 1100, 64, 1, 2, 300},
      {TEST_HEAD_MAJOR, 1, 4201, 128, 8, 1, 0},
      {TEST_PAGED_16_BY_HEAD, 1, 4203, 128, 2, 16, 0},
      {TEST_PAGED_16, 2, 300, 32, 4, 150, 0},
      {TEST_TRANSPOSED, 1, 300, 32, 2, 300, 100},
  };
  test_random random = test_random_start("attend long");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    if (!test_runs((uint32_t)i)) continue;
    test_cache* cache = MakeCache(cases[i].layout, cases[i].n_heads,
                                  cases[i].n_tokens, cases[i].dim, cases[i].dim,
                                  KVEVICT_DTYPE_F32, i % 2 == 0, &random);
    const question q = {.n_tokens = cases[i].n_tokens,
                        .group = cases[i].group,
                        .n_queries = cases[i].n_queries,
                        .window = cases[i].window,
                        .has_lse = 1,
                        .n_sum_heads = cases[i].n_heads * cases[i].group,
                        .q_dtype = KVEVICT_DTYPE_F32,
                        .out_dtype = KVEVICT_DTYPE_F32,
                        .strides = test_random_below(&random, 6 * 6 * 6)};
    const test_any_context with = test_draw_context(&random);
    question shorter = q;
    shorter.n_tokens = q.n_queries + (q.n_tokens - q.n_queries) / 8;
    scene s[kMostJobs];
    s[0] = MakeScene(cache, &shorter, &random);
    s[1] = MakeScene(cache, &q, &random);
    Attend(&with, s, kMostJobs);
    for (uint32_t k = 0; k < kMostJobs; ++k) FreeScene(&s[k]);
    test_cache_destroy(cache);
  }
}
