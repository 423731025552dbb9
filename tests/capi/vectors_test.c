/* Reproduces results of published implementations through presets: scores within
 * f32 rounding, and keep sets where scores decide. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/paths.h"

enum {
  kPastOnly = 1, /* scores and sets leave out the window */
  kNoSums = 2,   /* attention sums are absent, queries are handed over */
  kManyLayers = 4
};
/* The layers with a keep set; without kManyLayers there is one. */
static const uint32_t kLayers = 32, kKeepLayers[] = {0, 15, 31};

typedef struct vector_case {
  char folder[64];
  char policy[128];
  uint32_t flags;
} vector_case;

static vector_case kCases[] = {
    {"snapkv_kvpress__gqa8x2_D64_S512_W32",
     "snapkv-kvpress:budget=0.5,window=32", 0},
    {"snapkv_kvpress__mha4x4_D64_S96_W8",
     "snapkv-kvpress:budget=0.6,window=8,pool=avg3", 0},
    {"snapkv_official__mha4_D64_S512_W32_avg", "snapkv-original:budget=128",
     kPastOnly},
    {"snapkv_official__mha4_D64_S96_W8_max",
     "snapkv-original:budget=40,window=8,pool=max5", kPastOnly},
    {"snapkv_kvf_kvhead__max_maxpool_gqa8x2_D64_S512_W32",
     "snapkv:budget=160,sink=0,window=32,pool=max7,rows=sum,group=max",
     kPastOnly},
    {"pyramidkv_kvpress__gqa8x2_D64_S512_W32",
     "pyramidkv:budget=0.25,sink=0,window=32,pool=avg5,order=pool-reduce,split="
     "arithmetic-kvpress",
     kManyLayers},
    {"knorm_kvpress__h2_D64_S96", "knorm-kvpress", 0},
    {"tova_kvpress__gqa8x2_D64_S96", "tova-kvpress", 0},
    {"lagkv_kvpress__h2_D64_S96_lag16", "lagkv-kvpress:budget=0.6,block=16", 0},
    /* It shows no scores. */
    {"lagkv_official__S300_lag64", "lagkv-original:sink=4,block=64", 0},
    {"expected_attention_kvpress__gqa4x2_D64_S509_novnorm",
     "expected-attention-kvpress:budget=0.7,sink=8,weight=none", 0},
    {"h2o_kvf__mha4_D64_S96_W8", "h2o-kvf:budget=40,recent=8", kPastOnly},
    {"observed_attention_kvpress__gqa8x2_D64_S96", "observed-kvpress", 0},
    {"h2o_kvf__mha4_D64_S96_W8", "h2o-kvf:budget=40,recent=8",
     kPastOnly | kNoSums},
    {"observed_attention_kvpress__gqa8x2_D64_S96", "observed-kvpress", kNoSums},
    /* The source ran without its normalisation. */
    {"finch_kvpress__gqa8x2_D64_S96_W8_nonorm",
     "finch-kvpress:window=8,row_weight=none", 0},
    {"keydiff_kvpress__h2_D64_S96", "keydiff-kvpress", 0},
    {"rkv_official__gqa8x2_D64_S256", "r-kv-original", kPastOnly},
    {"adakv_kvpress__gqa8x4_D64_S96_W8", "adakv-kvpress:window=8", 0},
    {"adakv_official__gqamean_8x4_D64_S512", "adakv-original:budget=128",
     kPastOnly},
};

static uint32_t LayersOf(const vector_case* c) {
  return (c->flags & kManyLayers) != 0 ? kLayers : 1;
}

static uint32_t KeepSetsOf(const vector_case* c) {
  return (c->flags & kManyLayers) != 0 ? 3 : 1;
}

typedef struct vector_files {
  char folder[1200];
  test_npy k, v, q, scores;  /* no v and no q if the policy does without */
  test_npy mean, covariance; /* of queries, f32; absent with rows of queries */
  test_npy sums;             /* attention sums if the policy scores by them */
  uint32_t n_tokens, n_kv_heads, n_q_heads, head_dim, window;
} vector_files;

static vector_files Load(const vector_case* c) {
  vector_files v;
  memset(&v, 0, sizeof v);
  snprintf(v.folder, sizeof v.folder, "%s/vectors/%s", test_shared_dir,
           c->folder);
  v.k = test_npy_read(v.folder, "K", "<f2", 3);
  if (v.k.bytes == NULL) {
    fprintf(stderr, "skipped: no reference vectors in %s\n", v.folder);
    cr_skip_test("no reference vectors in %s", v.folder);
  }
  v.v = test_npy_read(v.folder, "V", "<f2", 3);
  v.mean = test_npy_read(v.folder, "mean", "<f4", 2);
  v.covariance = test_npy_read(v.folder, "cov", "<f4", 3);
  if (v.mean.bytes == NULL) v.q = test_npy_read(v.folder, "Q", "<f2", 3);
  v.scores = test_npy_read(
      v.folder, (c->flags & kPastOnly) != 0 ? "scores_past" : "scores", "<f4",
      2);
  if ((c->flags & kNoSums) == 0)
    v.sums = test_npy_read(v.folder, "attn_sum", "<f4", 2);
  v.n_kv_heads = v.k.shape[0];
  v.n_tokens = v.k.shape[1];
  v.head_dim = v.k.shape[2];
  v.n_q_heads = v.q.bytes != NULL      ? v.q.shape[0]
                : v.mean.bytes != NULL ? v.mean.shape[0]
                                       : v.n_kv_heads;
  if (v.q.bytes != NULL) v.window = v.q.shape[1];
  return v;
}

static void Free(vector_files* v) {
  test_npy_free(&v->k);
  test_npy_free(&v->v);
  test_npy_free(&v->q);
  test_npy_free(&v->scores);
  test_npy_free(&v->mean);
  test_npy_free(&v->covariance);
  test_npy_free(&v->sums);
}

/* The inputs of the signal beside keys. */
typedef struct vector_inputs {
  kvevict_plane queries, mean, covariance, sums;
  kvevict_signal_inputs inputs;
} vector_inputs;

static kvevict_plane FloatsPlane(const test_npy* array, uint32_t n_rows) {
  kvevict_plane plane = kvevict_plane_head_major(
      (const float*)array->bytes, KVEVICT_DTYPE_F32, n_rows, array->shape[1]);
  return plane;
}

static void MakeInputs(const vector_files* v, kvevict_dtype dtype,
                       vector_inputs* out) {
  memset(out, 0, sizeof *out);
  out->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  if (v->q.bytes != NULL) {
    out->queries = test_npy_plane(&v->q, dtype);
    out->inputs.queries = &out->queries;
  }
  if (v->sums.bytes != NULL) {
    out->sums = test_floats_plane((const float*)v->sums.bytes, v->n_tokens);
    out->inputs.attention_sums = &out->sums;
  }
  if (v->mean.bytes == NULL) return;
  out->mean = FloatsPlane(&v->mean, 1);
  out->covariance = FloatsPlane(&v->covariance, v->head_dim);
  out->inputs.query_mean = &out->mean;
  out->inputs.query_covariance = &out->covariance;
}

static kvevict_layer_geometry Layer(const vector_files* v,
                                    kvevict_dtype dtype) {
  kvevict_layer_geometry layer =
      test_layer(v->n_q_heads, v->n_kv_heads, v->head_dim, v->v.shape[2]);
  layer.q_dtype = layer.k_dtype = layer.v_dtype = dtype;
  return layer;
}

/* The source's scores are the mean over all heads, given to each of them. */
static void ShareScores(const vector_files* v, float* scores) {
  for (uint32_t t = 0; t < v->n_tokens; ++t) {
    double sum = 0.0;
    for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
      sum += scores[(size_t)h * v->n_tokens + t];
    }
    for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
      scores[(size_t)h * v->n_tokens + t] = (float)(sum / v->n_kv_heads);
    }
  }
}

static void ExpectScores(const vector_files* v, const kvevict_policy* policy,
                         float* scores) {
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  EXPECT_OK(kvevict_policy_resolve(policy, v->n_tokens, &resolved));
  const uint32_t rows = resolved.n_query_rows;
  const uint32_t window = rows < v->n_tokens ? rows : 0;
  const uint32_t n_past = v->scores.shape[1] < v->n_tokens
                              ? v->scores.shape[1]
                              : v->n_tokens - window;
  /* The source's scores of sinks only say that they stay. */
  const uint32_t n_sink = resolved.n_sink;
  if (oracle_policy_of(policy).scope == KVEVICT_SCOPE_LAYER) {
    ShareScores(v, scores);
  }
  for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
    const float* ours = scores + (size_t)h * v->n_tokens;
    const float* theirs =
        (const float*)v->scores.bytes + (size_t)h * v->scores.shape[1];
    float largest = 0.0f;
    for (uint32_t t = n_sink; t < n_past; ++t)
      largest = fmaxf(largest, fabsf(theirs[t]));
    for (uint32_t t = n_sink; t < n_past; ++t) {
      EXPECT(fabsf(ours[t] - theirs[t]) <=
                 2e-5f * fabsf(theirs[t]) + 1e-6f * largest,
             "head %u, token %u: score %.9g, not %.9g", h, t, (double)ours[t],
             (double)theirs[t]);
    }
    for (uint32_t t = v->n_tokens - window; t < v->n_tokens; ++t) {
      EXPECT(ours[t] == INFINITY, "head %u: token %u of the window", h, t);
    }
  }
}

/* Fails unless must <= keep <= must + may with as many tokens as the source keeps. If the
 * source does not say what must stay, the set is its own. keep[n_kv_heads][n_tokens]. */
static void ExpectKeepSet(const vector_case* c, const vector_files* v,
                          uint32_t set, const int32_t* keep,
                          const uint32_t* n_keep) {
  char name[64], suffix[16] = "";
  if (KeepSetsOf(c) > 1) {
    snprintf(suffix, sizeof suffix, "_l%u", kKeepLayers[set]);
  } else if ((c->flags & kPastOnly) != 0) {
    snprintf(suffix, sizeof suffix, "_past");
  }
  snprintf(name, sizeof name, "must_keep%s", suffix);
  test_npy must = test_npy_read(v->folder, name, "|b1", 2);
  snprintf(name, sizeof name, "may_keep%s", suffix);
  test_npy may = test_npy_read(v->folder, name, "|b1", 2);
  snprintf(name, sizeof name, "keep%s", KeepSetsOf(c) > 1 ? suffix : "");
  test_npy theirs = test_npy_read(v->folder, name, "<i4", 2);
  test_npy lengths = test_npy_read(v->folder, "head_len", "<i4", 1);
  EXPECT((must.bytes == NULL) == (may.bytes == NULL) &&
             (theirs.bytes != NULL || lengths.bytes != NULL),
         "%s is incomplete", v->folder);
  const bool exact = must.bytes == NULL;
  const uint32_t n = exact ? v->n_tokens : must.shape[1];
  for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
    const uint32_t wanted = lengths.bytes == NULL
                                ? theirs.shape[1]
                                : ((const uint32_t*)lengths.bytes)[h];
    EXPECT(n_keep[h] == wanted, "head %u: %u kept, not %u", h, n_keep[h],
           wanted);
    uint8_t kept[4096] = {0};
    for (uint32_t i = 0; i < wanted; ++i) kept[keep[h * v->n_tokens + i]] = 1;
    const int32_t* const kept_there =
        (const int32_t*)theirs.bytes + (size_t)h * wanted;
    for (uint32_t i = 0; exact && i < wanted; ++i) {
      EXPECT(kept[kept_there[i]], "head %u lost token %d", h, kept_there[i]);
    }
    if (exact) continue;
    for (uint32_t t = 0; t < v->n_tokens; ++t) {
      /* The sets leave out the window, which stays. */
      const bool must_stay = t >= n || must.bytes[h * n + t] != 0;
      const bool may_stay = must_stay || may.bytes[h * n + t] != 0;
      EXPECT(!must_stay || kept[t], "head %u lost token %u", h, t);
      EXPECT(may_stay || !kept[t], "head %u kept token %u", h, t);
    }
  }
  test_npy_free(&must);
  test_npy_free(&may);
  test_npy_free(&theirs);
  test_npy_free(&lengths);
}

/* Selects from [n_kv_heads, n_tokens] scores. Heads that share a list have copies
 * of it. */
static void SelectSet(const vector_case* c, const vector_files* v, test_plan* p,
                      uint32_t set, const float* scores) {
  const size_t n_scores = (size_t)v->n_kv_heads * v->n_tokens;
  int32_t* keep = malloc(n_scores * sizeof(int32_t));
  int32_t* apart = malloc(n_scores * sizeof(int32_t));
  uint32_t n_keep = 0;
  EXPECT_OK(test_select(p, kKeepLayers[set], scores, n_scores, v->n_tokens,
                        NULL, 0, keep, n_scores, &n_keep));
  const bool one_list = p->policy.scope != KVEVICT_SCOPE_KV_HEAD;
  uint32_t counts[64];
  for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
    counts[h] = n_keep;
    memcpy(apart + (size_t)h * v->n_tokens,
           keep + (one_list ? 0 : (size_t)h * n_keep), n_keep * sizeof *keep);
  }
  ExpectKeepSet(c, v, set, apart, counts);
  free(keep);
  free(apart);
}

static void RunCase(const vector_case* c, const vector_files* v,
                    kvevict_dtype dtype) {
  const kvevict_layer_geometry layer = Layer(v, dtype);
  const kvevict_geometry geometry =
      test_geometry(LayersOf(c), v->n_tokens, &layer);
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = v->n_kv_heads;
  view.k = test_npy_plane(&v->k, dtype);
  view.v = test_npy_plane(&v->v, dtype);
  vector_inputs given;
  MakeInputs(v, dtype, &given);
  const size_t n_scores = (size_t)v->n_kv_heads * v->n_tokens;
  float* scores = malloc(n_scores * sizeof(float));

  test_plan* p =
      test_plan_create(c->policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  job.n_tokens = v->n_tokens;
  job.view = &view;
  job.inputs = &given.inputs;
  job.scores = scores;
  job.scores_len = n_scores;
  EXPECT_OK(test_score_jobs(p, &job, 1));
  if (v->scores.bytes != NULL) ExpectScores(v, p->policy_handle, scores);
  test_plan_destroy(p);

  /* Scores of all heads decide only in an eviction. */
  const bool alike = oracle_policy_from(c->policy).heads == ORACLE_HEADS_EQUAL;
  p = test_plan_create_to_select(c->policy, &geometry, 1);
  for (uint32_t set = 0; alike && set < KeepSetsOf(c); ++set) {
    SelectSet(c, v, p, set, scores);
  }
  test_plan_destroy(p);
  free(scores);
  test_npy_plane_free(&view.k);
  test_npy_plane_free(&view.v);
  test_npy_plane_free(&given.queries);
}

ParameterizedTestParameters(vectors,
                            presets_reproduce_published_scores_and_sets) {
  return cr_make_param_array(vector_case, kCases,
                             sizeof kCases / sizeof kCases[0]);
}

ParameterizedTest(vector_case* c, vectors,
                  presets_reproduce_published_scores_and_sets) {
  vector_files v = Load(c);
  RunCase(c, &v, KVEVICT_DTYPE_F32);
  RunCase(c, &v, KVEVICT_DTYPE_F16);
  RunCase(c, &v, KVEVICT_DTYPE_BF16);
  Free(&v);
}

/* One eviction of all layers gives the same sets and moves K's rows. */
static void EvictCase(const vector_case* c, const vector_files* v) {
  const kvevict_layer_geometry alike = Layer(v, KVEVICT_DTYPE_F16);
  const kvevict_geometry geometry =
      test_geometry(LayersOf(c), v->n_tokens, &alike);
  test_plan* p =
      test_plan_create(c->policy, &geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(sequence, NULL, 0));
  vector_inputs given;
  MakeInputs(v, KVEVICT_DTYPE_F16, &given);
  kvevict_signal_inputs inputs[32]; /* without what is observed */
  kvevict_view views[32];
  for (uint32_t l = 0; l < LayersOf(c); ++l) {
    views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    views[l].n_kv_heads = v->n_kv_heads;
    views[l].k = test_npy_plane(&v->k, KVEVICT_DTYPE_F16);
    views[l].v = test_npy_plane(&v->v, KVEVICT_DTYPE_F16);
    EXPECT_OK(test_observe(sequence, l, &given.queries, v->window,
                           v->n_tokens - v->window));
    inputs[l] = given.inputs;
    if ((c->flags & kNoSums) == 0) inputs[l].queries = NULL;
  }
  EXPECT_OK(kvevict_sequence_append(sequence, v->n_tokens, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs;
  options.inputs_len = LayersOf(c);
  EXPECT_OK(kvevict_sequence_evict(sequence, views, LayersOf(c), &options,
                                   p->workspace, p->workspace_bytes, NULL));
  int32_t* keep = malloc((size_t)v->n_kv_heads * v->n_tokens * sizeof(int32_t));
  const size_t row = 2 * (size_t)v->head_dim;
  for (uint32_t set = 0; set < KeepSetsOf(c); ++set) {
    const uint32_t layer = kKeepLayers[set];
    uint32_t counts[64];
    for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
      int32_t* kept = keep + (size_t)h * v->n_tokens;
      EXPECT_OK(kvevict_sequence_stored_length(sequence, layer, h, &counts[h]));
      size_t n_written = 0;
      EXPECT_OK(kvevict_sequence_keep_positions(sequence, layer, h, kept,
                                                counts[h], &n_written));
      const uint8_t* head = (const uint8_t*)(uintptr_t)views[layer].k.data +
                            h * views[layer].k.head_stride_bytes;
      for (uint32_t i = 0; i < counts[h]; ++i) {
        const size_t from = (size_t)h * v->n_tokens + (size_t)kept[i];
        EXPECT(memcmp(head + i * row, v->k.bytes + from * row, row) == 0,
               "layer %u, head %u: slot %u is not token %d", layer, h, i,
               kept[i]);
      }
    }
    ExpectKeepSet(c, v, set, keep, counts);
  }
  free(keep);
  for (uint32_t l = 0; l < LayersOf(c); ++l) {
    test_npy_plane_free(&views[l].k);
    test_npy_plane_free(&views[l].v);
  }
  test_npy_plane_free(&given.queries);
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(p);
}

ParameterizedTestParameters(vectors, one_eviction_reproduces_published_sets) {
  return cr_make_param_array(vector_case, kCases,
                             sizeof kCases / sizeof kCases[0]);
}

ParameterizedTest(vector_case* c, vectors,
                  one_eviction_reproduces_published_sets) {
  vector_files v = Load(c);
  EvictCase(c, &v);
  Free(&v);
}
