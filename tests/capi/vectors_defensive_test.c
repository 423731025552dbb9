/* What DefensiveKV's and Layer-DefensiveKV's authors' code computed and kept, reproduced
 * through the presets. preset_sets_test.c has what ours keep. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"
#include "tests/paths.h"

enum { kMaxLayers = 4, kMaxHeads = 8, kMost = 512 };

/* Arrays of one layer have no axis of layers. */
typedef struct recorded {
  char folder[1200];
  bool has_layers;
  test_npy k, v, q, norms, refined, defensive, lengths, must, may;
  uint32_t n_layers, n_kv_heads, n_q_heads, n_tokens, head_dim, window, n_past;
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
  float* weights; /* [n_layers, n_kv_heads, n_tokens] */
  uint8_t* rows;  /* K, then V: [n_layers, n_kv_heads, n_tokens, head_dim] */
  kvevict_view views[kMaxLayers];
  kvevict_plane queries[kMaxLayers], planes[kMaxLayers];
  kvevict_signal_inputs inputs[kMaxLayers];
} recorded;

static test_npy Read(const recorded* r, const char* name, const char* type,
                     uint32_t n_axes) {
  const test_npy array =
      test_npy_read(r->folder, name, type, n_axes + r->has_layers);
  EXPECT(array.bytes != NULL, "%s: no %s", r->folder, name);
  return array;
}

static kvevict_plane Plane(const recorded* r, uint8_t* rows, uint32_t n_rows) {
  kvevict_plane plane = KVEVICT_PLANE_INIT;
  plane.data = (uint64_t)(uintptr_t)rows;
  plane.dtype = KVEVICT_DTYPE_F16;
  plane.head_dim = r->head_dim;
  plane.token_stride_bytes = 2 * (int64_t)r->head_dim;
  plane.head_stride_bytes = plane.token_stride_bytes * n_rows;
  return plane;
}

static size_t CacheBytes(const recorded* r) {
  return (size_t)r->n_kv_heads * r->n_tokens * r->head_dim * 2;
}

/* As they were before any eviction. */
static void FillCaches(recorded* r) {
  const size_t bytes = CacheBytes(r);
  for (uint32_t l = 0; l < r->n_layers; ++l) {
    uint8_t* const k = r->rows + 2 * l * bytes;
    memcpy(k, r->k.bytes + l * bytes, bytes);
    memcpy(k + bytes, r->v.bytes + l * bytes, bytes);
    r->views[l] = (kvevict_view)KVEVICT_VIEW_INIT;
    r->views[l].n_kv_heads = r->n_kv_heads;
    r->views[l].k = Plane(r, k, r->n_tokens);
    r->views[l].v = Plane(r, k + bytes, r->n_tokens);
  }
}

static recorded* Load(const char* name, bool has_layers) {
  recorded* r = calloc(1, sizeof *r);
  snprintf(r->folder, sizeof r->folder, "%s/vectors/%s", test_shared_dir, name);
  r->has_layers = has_layers;
  r->k = test_npy_read(r->folder, "K", "<f2", 3 + has_layers);
  if (r->k.bytes == NULL) {
    fprintf(stderr, "skipped: no reference vectors in %s\n", r->folder);
    cr_skip_test("no reference vectors in %s", r->folder);
  }
  r->v = Read(r, "V", "<f2", 3);
  r->q = Read(r, "Q", "<f2", 3);
  r->norms = Read(r, "WoV_l1", "<f4", 2);
  r->refined = Read(r, "refined", "<f4", 2);
  r->defensive = Read(r, "defensive", "<f4", 2);
  r->lengths = Read(r, "head_len", "<i4", 1);
  r->must = Read(r, "must_keep", "|b1", 2);
  r->may = Read(r, "may_keep", "|b1", 2);
  const uint32_t* const shape = r->k.shape + has_layers;
  r->n_layers = has_layers ? r->k.shape[0] : 1;
  r->n_kv_heads = shape[0];
  r->n_tokens = shape[1];
  r->head_dim = shape[2];
  r->n_q_heads = r->q.shape[has_layers];
  r->window = r->q.shape[1 + has_layers];
  r->n_past = r->n_tokens - r->window;
  EXPECT(r->n_layers <= kMaxLayers && r->n_kv_heads <= kMaxHeads &&
             r->n_tokens <= kMost,
         "%u layers of %u heads", r->n_layers, r->n_kv_heads);
  r->layer = test_layer(r->n_q_heads, r->n_kv_heads, r->head_dim, r->head_dim);
  r->layer.q_dtype = r->layer.k_dtype = r->layer.v_dtype = KVEVICT_DTYPE_F16;
  r->geometry = test_geometry(r->n_layers, r->n_tokens, &r->layer);
  r->rows = malloc(2 * r->n_layers * CacheBytes(r));
  FillCaches(r);
  const size_t n_lists = (size_t)r->n_layers * r->n_kv_heads;
  r->weights = malloc(n_lists * r->n_tokens * sizeof(float));
  for (size_t i = 0; i < n_lists; ++i) {
    for (uint32_t t = 0; t < r->n_tokens; ++t) {
      r->weights[i * r->n_tokens + t] =
          t < r->n_past ? ((const float*)r->norms.bytes)[i * r->n_past + t]
                        : 1.0f;
    }
  }
  const size_t of_queries = (size_t)r->n_q_heads * r->window * r->head_dim * 2;
  for (uint32_t l = 0; l < r->n_layers; ++l) {
    r->queries[l] = Plane(r, r->q.bytes + l * of_queries, r->window);
    r->planes[l] = test_floats_plane(
        r->weights + (size_t)l * r->n_kv_heads * r->n_tokens, r->n_tokens);
    r->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    r->inputs[l].queries = &r->queries[l];
    r->inputs[l].token_weights = &r->planes[l];
  }
  return r;
}

static void Free(recorded* r) {
  test_npy* const arrays[] = {&r->k,     &r->v,         &r->q,
                              &r->norms, &r->refined,   &r->must,
                              &r->may,   &r->defensive, &r->lengths};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) {
    test_npy_free(arrays[i]);
  }
  free(r->weights);
  free(r->rows);
  free(r);
}

static void ExpectScores(recorded* r, const char* policy,
                         const test_npy* wanted) {
  FillCaches(r);
  test_plan* p =
      test_plan_create(policy, &r->geometry, KVEVICT_OPERATION_SCORE, 1);
  static float scores[kMaxHeads * kMost];
  for (uint32_t l = 0; l < r->n_layers; ++l) {
    kvevict_score_job job = test_score_job(
        r->n_tokens, &r->views[l], &r->inputs[l], scores, r->n_kv_heads);
    job.layer = l;
    EXPECT_OK(test_score_jobs(p, &job, 1));
    for (uint32_t h = 0; h < r->n_kv_heads; ++h) {
      const float* ours = scores + (size_t)h * r->n_tokens;
      const float* theirs = (const float*)wanted->bytes +
                            ((size_t)l * r->n_kv_heads + h) * r->n_past;
      float largest = 0.0f;
      for (uint32_t t = 0; t < r->n_past; ++t) {
        largest = fmaxf(largest, fabsf(theirs[t]));
      }
      for (uint32_t t = 0; t < r->n_tokens; ++t) {
        EXPECT(t >= r->n_past ? ours[t] == INFINITY
                              : fabsf(ours[t] - theirs[t]) <=
                                    2e-5f * fabsf(theirs[t]) + 1e-6f * largest,
               "%s: layer %u, head %u, token %u: %.9g, not %.9g", policy, l, h,
               t, (double)ours[t], t < r->n_past ? (double)theirs[t] : 0.0);
      }
    }
  }
  test_plan_destroy(p);
}

/* kept[n_layers, n_kv_heads, n_tokens] of 0 and 1, and the rows moved. */
static void Evict(recorded* r, const char* policy, uint8_t* kept) {
  FillCaches(r);
  test_plan* p =
      test_plan_create(policy, &r->geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, r->n_tokens, NULL));
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = r->inputs;
  options.inputs_len = r->n_layers;
  EXPECT_OK(kvevict_sequence_evict(sequence, r->views, r->n_layers, &options,
                                   p->workspace, p->workspace_bytes, NULL));
  memset(kept, 0, (size_t)r->n_layers * r->n_kv_heads * r->n_tokens);
  const size_t row = 2 * (size_t)r->head_dim;
  for (uint32_t i = 0; i < r->n_layers * r->n_kv_heads; ++i) {
    const uint32_t l = i / r->n_kv_heads, h = i % r->n_kv_heads;
    int32_t positions[kMost];
    uint32_t n = 0;
    size_t n_written = 0;
    EXPECT_OK(kvevict_sequence_stored_length(sequence, l, h, &n));
    EXPECT_OK(kvevict_sequence_keep_positions(sequence, l, h, positions, n,
                                              &n_written));
    for (uint32_t s = 0; s < n; ++s) {
      const size_t from = (size_t)i * r->n_tokens + (size_t)positions[s];
      kept[from] = 1;
      const uint8_t* const to = (const uint8_t*)(uintptr_t)r->views[l].k.data +
                                ((size_t)h * r->n_tokens + s) * row;
      EXPECT(memcmp(to, r->k.bytes + from * row, row) == 0 &&
                 memcmp(to + CacheBytes(r), r->v.bytes + from * row, row) == 0,
             "list %u: slot %u is not token %d", i, s, positions[s]);
    }
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(p);
}

static void ExpectTheirs(const recorded* r, const uint8_t* kept) {
  for (uint32_t i = 0; i < r->n_layers * r->n_kv_heads; ++i) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < r->n_tokens; ++t) {
      const size_t at = (size_t)i * r->n_tokens + t;
      n += kept[at];
      EXPECT(!r->must.bytes[at] || kept[at], "list %u lost token %u", i, t);
      EXPECT(r->must.bytes[at] || r->may.bytes[at] || !kept[at],
             "list %u kept token %u", i, t);
    }
    const uint32_t wanted = ((const uint32_t*)r->lengths.bytes)[i];
    EXPECT(n == wanted, "list %u keeps %u, not %u", i, n, wanted);
  }
}

static void RunCase(const char* folder, bool has_layers, const char* preset) {
  recorded* r = Load(folder, has_layers);
  uint8_t* const kept =
      malloc((size_t)r->n_layers * r->n_kv_heads * r->n_tokens);
  char policy[128];
  snprintf(policy, sizeof policy, "%s-original:budget=0.4,window=%u", preset,
           r->window);
  ExpectScores(r, policy, &r->refined);
  Evict(r, policy, kept);
  ExpectTheirs(r, kept);
  snprintf(policy, sizeof policy,
           "%s:budget=0.4,window=%u,weight=none,share=none", preset, r->window);
  ExpectScores(r, policy, &r->defensive);
  free(kept);
  Free(r);
}

Test(vectors, defensivekv_keeps_what_its_authors_code_keeps) {
  RunCase("defensivekv_official__gqa8x2_D64_S96_W8", false, "defensivekv");
}

Test(vectors, layer_defensivekv_keeps_what_its_authors_code_keeps) {
  RunCase("layer_defensivekv_official__gqa4x2_L2_D64_S96_W8", true,
          "layer-defensivekv");
}
