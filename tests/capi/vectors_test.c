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
  kPastOnly = 1,   /* scores and sets leave out the window */
  kNoSums = 2,     /* attention sums are absent, queries are handed over */
  kManyLayers = 4, /* all of them have the same rows */
  kOwnLayers = 8,  /* arrays have an axis of layers before the others */
  kRefined = 16,   /* scores have another name, and no sets are compared ... */
  kDefensive = 32, /* ... with these */
  kMostLayers = 32
};
/* The layers with a keep set by kManyLayers; otherwise all have one. */
static const uint32_t kKeepLayers[] = {0, 15, 31};

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
    {"defensivekv_official__gqa8x2_D64_S96_W8",
     "defensivekv-original:budget=0.4,window=8", kRefined},
    {"defensivekv_official__gqa8x2_D64_S96_W8",
     "defensivekv:budget=0.4,window=8,weight=none,share=none", kDefensive},
    {"layer_defensivekv_official__gqa4x2_L2_D64_S96_W8",
     "layer-defensivekv-original:budget=0.4,window=8", kRefined | kOwnLayers},
    {"layer_defensivekv_official__gqa4x2_L2_D64_S96_W8",
     "layer-defensivekv:budget=0.4,window=8,weight=none,share=none",
     kDefensive | kOwnLayers},
};

typedef struct vector_files {
  const vector_case* c;
  char folder[1200];
  test_npy k, v, q, scores;  /* no v and no q if the policy does without */
  test_npy mean, covariance; /* of queries, f32; absent with rows of queries */
  test_npy sums;             /* attention sums if the policy scores by them */
  test_npy norms;            /* weights of the tokens before the window */
  float* weights;            /* of all */
  uint32_t n_layers, n_sets, n_tokens, n_kv_heads, n_q_heads, head_dim, window;
} vector_files;

static test_npy Read(const vector_files* v, const char* name, const char* type,
                     uint32_t n_axes) {
  const bool has_layers = (v->c->flags & kOwnLayers) != 0;
  return test_npy_read(v->folder, name, type, n_axes + has_layers);
}

/* An axis of an array behind that of layers. */
static uint32_t Size(const vector_files* v, const test_npy* array,
                     uint32_t axis) {
  return array->shape[axis + ((v->c->flags & kOwnLayers) != 0)];
}

/* The layer of an array that has this one's rows. */
static uint32_t Part(const vector_files* v, uint32_t layer) {
  return (v->c->flags & kOwnLayers) != 0 ? layer : 0;
}

static const char* ScoresOf(const vector_case* c) {
  if ((c->flags & kRefined) != 0) return "refined";
  if ((c->flags & kDefensive) != 0) return "defensive";
  return (c->flags & kPastOnly) != 0 ? "scores_past" : "scores";
}

/* The window weighs 1. */
static void LoadWeights(vector_files* v) {
  v->norms = Read(v, "WoV_l1", "<f4", 2);
  if (v->norms.bytes == NULL) return;
  const uint32_t n = v->n_tokens, n_past = Size(v, &v->norms, 1);
  const uint32_t n_lists = v->n_layers * v->n_kv_heads;
  v->weights = malloc(sizeof(float) * n_lists * n);
  for (uint32_t i = 0; i < n_lists * n; ++i) {
    v->weights[i] = i % n < n_past
                        ? ((const float*)v->norms.bytes)[i / n * n_past + i % n]
                        : 1.0f;
  }
}

static vector_files Load(const vector_case* c) {
  vector_files v = {.c = c};
  snprintf(v.folder, sizeof v.folder, "%s/vectors/%s", test_shared_dir,
           c->folder);
  v.k = Read(&v, "K", "<f2", 3);
  if (v.k.bytes == NULL) {
    fprintf(stderr, "skipped: no reference vectors in %s\n", v.folder);
    cr_skip_test("no reference vectors in %s", v.folder);
  }
  v.v = Read(&v, "V", "<f2", 3);
  v.mean = Read(&v, "mean", "<f4", 2);
  v.covariance = Read(&v, "cov", "<f4", 3);
  if (v.mean.bytes == NULL) v.q = Read(&v, "Q", "<f2", 3);
  v.scores = Read(&v, ScoresOf(c), "<f4", 2);
  if ((c->flags & kNoSums) == 0) v.sums = Read(&v, "attn_sum", "<f4", 2);
  v.n_layers = (c->flags & kManyLayers) != 0  ? kMostLayers
               : (c->flags & kOwnLayers) != 0 ? v.k.shape[0]
                                              : 1;
  v.n_sets = (c->flags & kManyLayers) != 0  ? 3
             : (c->flags & kDefensive) != 0 ? 0
                                            : v.n_layers;
  v.n_kv_heads = Size(&v, &v.k, 0);
  v.n_tokens = Size(&v, &v.k, 1);
  v.head_dim = Size(&v, &v.k, 2);
  v.n_q_heads = v.q.bytes != NULL      ? Size(&v, &v.q, 0)
                : v.mean.bytes != NULL ? v.mean.shape[0]
                                       : v.n_kv_heads;
  if (v.q.bytes != NULL) v.window = Size(&v, &v.q, 1);
  LoadWeights(&v);
  return v;
}

static void Free(vector_files* v) {
  test_npy* const arrays[] = {&v->k,    &v->v,          &v->q,    &v->scores,
                              &v->mean, &v->covariance, &v->sums, &v->norms};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) {
    test_npy_free(arrays[i]);
  }
  free(v->weights);
}

/* A layer's cache, and the inputs of the signal beside keys. */
typedef struct vector_layer {
  kvevict_view view;
  kvevict_plane queries, mean, covariance, sums, weights;
  kvevict_signal_inputs inputs;
} vector_layer;

static kvevict_plane FloatsPlane(const test_npy* array, uint32_t n_rows) {
  kvevict_plane plane = kvevict_plane_head_major(
      (const float*)array->bytes, KVEVICT_DTYPE_F32, n_rows, array->shape[1]);
  return plane;
}

static void MakeLayer(const vector_files* v, uint32_t layer,
                      kvevict_dtype dtype, vector_layer* out) {
  const uint32_t part = Part(v, layer);
  memset(out, 0, sizeof *out);
  out->view = (kvevict_view)KVEVICT_VIEW_INIT;
  out->view.n_kv_heads = v->n_kv_heads;
  out->view.k = test_npy_plane(&v->k, part, dtype);
  out->view.v = test_npy_plane(&v->v, part, dtype);
  out->inputs = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
  if (v->q.bytes != NULL) {
    out->queries = test_npy_plane(&v->q, part, dtype);
    out->inputs.queries = &out->queries;
  }
  if (v->sums.bytes != NULL) {
    out->sums = test_floats_plane((const float*)v->sums.bytes, v->n_tokens);
    out->inputs.attention_sums = &out->sums;
  }
  if (v->weights != NULL) {
    const size_t at = (size_t)part * v->n_kv_heads * v->n_tokens;
    out->weights = test_floats_plane(v->weights + at, v->n_tokens);
    out->inputs.token_weights = &out->weights;
  }
  if (v->mean.bytes == NULL) return;
  out->mean = FloatsPlane(&v->mean, 1);
  out->covariance = FloatsPlane(&v->covariance, v->head_dim);
  out->inputs.query_mean = &out->mean;
  out->inputs.query_covariance = &out->covariance;
}

static void FreeLayer(vector_layer* layer) {
  test_npy_plane_free(&layer->view.k);
  test_npy_plane_free(&layer->view.v);
  test_npy_plane_free(&layer->queries);
}

static kvevict_layer_geometry Layer(const vector_files* v,
                                    kvevict_dtype dtype) {
  kvevict_layer_geometry layer =
      test_layer(v->n_q_heads, v->n_kv_heads, v->head_dim, Size(v, &v->v, 2));
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
                         uint32_t layer, float* scores) {
  kvevict_resolved_policy resolved = {.struct_size = sizeof resolved};
  EXPECT_OK(kvevict_policy_resolve(policy, v->n_tokens, &resolved));
  const uint32_t rows = resolved.n_query_rows;
  const uint32_t window = rows < v->n_tokens ? rows : 0;
  const uint32_t n_given = Size(v, &v->scores, 1);
  const uint32_t n_past =
      n_given < v->n_tokens ? n_given : v->n_tokens - window;
  /* The source's scores of sinks only say that they stay. */
  const uint32_t n_sink = resolved.n_sink;
  if (oracle_policy_of(policy).scope == KVEVICT_SCOPE_LAYER) {
    ShareScores(v, scores);
  }
  for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
    const float* ours = scores + (size_t)h * v->n_tokens;
    const uint32_t list = Part(v, layer) * v->n_kv_heads + h;
    const float* theirs =
        (const float*)v->scores.bytes + (size_t)list * n_given;
    float largest = 0.0f;
    for (uint32_t t = n_sink; t < n_past; ++t)
      largest = fmaxf(largest, fabsf(theirs[t]));
    for (uint32_t t = n_sink; t < n_past; ++t) {
      EXPECT(fabsf(ours[t] - theirs[t]) <=
                 2e-5f * fabsf(theirs[t]) + 1e-6f * largest,
             "layer %u, head %u, token %u: score %.9g, not %.9g", layer, h, t,
             (double)ours[t], (double)theirs[t]);
    }
    for (uint32_t t = v->n_tokens - window; t < v->n_tokens; ++t) {
      EXPECT(ours[t] == INFINITY, "head %u: token %u of the window", h, t);
    }
  }
}

/* Fails unless must <= keep <= must + may with as many tokens as the source keeps. If the
 * source does not say what must stay, the set is its own. keep[n_kv_heads][n_tokens]. */
static void ExpectKeepSet(const vector_files* v, uint32_t set,
                          const int32_t* keep, const uint32_t* n_keep) {
  const bool is_many = (v->c->flags & kManyLayers) != 0;
  char name[64], suffix[16] = "";
  if (is_many) {
    snprintf(suffix, sizeof suffix, "_l%u", kKeepLayers[set]);
  } else if ((v->c->flags & kPastOnly) != 0) {
    snprintf(suffix, sizeof suffix, "_past");
  }
  snprintf(name, sizeof name, "must_keep%s", suffix);
  test_npy must = Read(v, name, "|b1", 2);
  snprintf(name, sizeof name, "may_keep%s", suffix);
  test_npy may = Read(v, name, "|b1", 2);
  snprintf(name, sizeof name, "keep%s", is_many ? suffix : "");
  test_npy theirs = Read(v, name, "<i4", 2);
  test_npy lengths = Read(v, "head_len", "<i4", 1);
  EXPECT((must.bytes == NULL) == (may.bytes == NULL) &&
             (theirs.bytes != NULL || lengths.bytes != NULL),
         "%s is incomplete", v->folder);
  const bool exact = must.bytes == NULL;
  const uint32_t n = exact ? v->n_tokens : Size(v, &must, 1);
  for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
    const size_t list = (size_t)Part(v, set) * v->n_kv_heads + h;
    const uint32_t wanted = lengths.bytes == NULL
                                ? theirs.shape[1]
                                : ((const uint32_t*)lengths.bytes)[list];
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
      const bool must_stay = t >= n || must.bytes[list * n + t] != 0;
      const bool may_stay = must_stay || may.bytes[list * n + t] != 0;
      EXPECT(!must_stay || kept[t], "head %u lost token %u", h, t);
      EXPECT(may_stay || !kept[t], "head %u kept token %u", h, t);
    }
  }
  test_npy_free(&must);
  test_npy_free(&may);
  test_npy_free(&theirs);
  test_npy_free(&lengths);
}

static void ScoreCase(const vector_files* v, kvevict_dtype dtype) {
  const char* const policy = v->c->policy;
  const kvevict_layer_geometry alike = Layer(v, dtype);
  const kvevict_geometry geometry =
      test_geometry(v->n_layers, v->n_tokens, &alike);
  const size_t n_scores = (size_t)v->n_kv_heads * v->n_tokens;
  float* scores = malloc(n_scores * sizeof(float));
  test_plan* p =
      test_plan_create(policy, &geometry, KVEVICT_OPERATION_SCORE, 1);
  for (uint32_t l = 0; l <= Part(v, v->n_layers - 1); ++l) {
    vector_layer layer;
    MakeLayer(v, l, dtype, &layer);
    kvevict_score_job job = test_score_job(
        v->n_tokens, &layer.view, &layer.inputs, scores, v->n_kv_heads);
    job.layer = l;
    EXPECT_OK(test_score_jobs(p, &job, 1));
    if (v->scores.bytes != NULL) ExpectScores(v, p->policy_handle, l, scores);
    FreeLayer(&layer);
  }
  test_plan_destroy(p);
  free(scores);
}

ParameterizedTestParameters(vectors, presets_reproduce_published_scores) {
  return cr_make_param_array(vector_case, kCases,
                             sizeof kCases / sizeof kCases[0]);
}

ParameterizedTest(vector_case* c, vectors, presets_reproduce_published_scores) {
  vector_files v = Load(c);
  ScoreCase(&v, KVEVICT_DTYPE_F32);
  ScoreCase(&v, KVEVICT_DTYPE_F16);
  ScoreCase(&v, KVEVICT_DTYPE_BF16);
  Free(&v);
}

/* The slots of a layer and head have the rows of these tokens. */
static void ExpectRows(const vector_files* v, const test_npy* array,
                       const kvevict_plane* plane, uint32_t layer,
                       uint32_t head, const int32_t* kept, uint32_t n) {
  const size_t row = 2 * (size_t)plane->head_dim;
  const uint8_t* const rows =
      (const uint8_t*)(uintptr_t)plane->data + head * plane->head_stride_bytes;
  const size_t first =
      ((size_t)Part(v, layer) * v->n_kv_heads + head) * v->n_tokens;
  for (uint32_t i = 0; i < n; ++i) {
    EXPECT(memcmp(rows + i * row,
                  array->bytes + (first + (size_t)kept[i]) * row, row) == 0,
           "layer %u, head %u: slot %u is not token %d", layer, head, i,
           kept[i]);
  }
}

/* One eviction of all layers gives the same sets and moves K's and V's rows. */
static void EvictCase(const vector_files* v) {
  const kvevict_layer_geometry alike = Layer(v, KVEVICT_DTYPE_F16);
  const kvevict_geometry geometry =
      test_geometry(v->n_layers, v->n_tokens, &alike);
  test_plan* p =
      test_plan_create(v->c->policy, &geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  EXPECT_OK(kvevict_sequence_begin_observing(sequence, NULL, 0));
  static vector_layer layers[kMostLayers];
  kvevict_signal_inputs inputs[kMostLayers]; /* without what is observed */
  kvevict_view views[kMostLayers];
  for (uint32_t l = 0; l < v->n_layers; ++l) {
    MakeLayer(v, l, KVEVICT_DTYPE_F16, &layers[l]);
    EXPECT_OK(test_observe(sequence, l, &layers[l].queries, v->window,
                           v->n_tokens - v->window));
    views[l] = layers[l].view;
    inputs[l] = layers[l].inputs;
    if ((v->c->flags & kNoSums) == 0) inputs[l].queries = NULL;
  }
  EXPECT_OK(kvevict_sequence_append(sequence, v->n_tokens, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = inputs;
  options.inputs_len = v->n_layers;
  EXPECT_OK(kvevict_sequence_evict(sequence, views, v->n_layers, &options,
                                   p->workspace, p->workspace_bytes, NULL));
  int32_t* keep = malloc((size_t)v->n_kv_heads * v->n_tokens * sizeof(int32_t));
  for (uint32_t set = 0; set < v->n_sets; ++set) {
    const uint32_t layer =
        (v->c->flags & kManyLayers) != 0 ? kKeepLayers[set] : set;
    uint32_t counts[64];
    for (uint32_t h = 0; h < v->n_kv_heads; ++h) {
      int32_t* kept = keep + (size_t)h * v->n_tokens;
      EXPECT_OK(kvevict_sequence_stored_length(sequence, layer, h, &counts[h]));
      size_t n_written = 0;
      EXPECT_OK(kvevict_sequence_keep_positions(sequence, layer, h, kept,
                                                counts[h], &n_written));
      ExpectRows(v, &v->k, &views[layer].k, layer, h, kept, counts[h]);
      if (v->v.bytes == NULL) continue;
      ExpectRows(v, &v->v, &views[layer].v, layer, h, kept, counts[h]);
    }
    ExpectKeepSet(v, set, keep, counts);
  }
  free(keep);
  for (uint32_t l = 0; l < v->n_layers; ++l) FreeLayer(&layers[l]);
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
  EvictCase(&v);
  Free(&v);
}
