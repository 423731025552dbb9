/* Reproduces through the preset what TriAttention's authors' code kept in its mode
 * union, by the evictions of a sequence that goes on. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/npy.h"
#include "tests/capi/support/plan.h"

enum { kMaxLayers = 4 };

typedef struct recorded {
  test_npy k, re, im, length, omega, events, keep;
  test_npy_entry entries[7];
  uint32_t n_layers, n_kv_heads, n_q_heads, n_tokens, head_dim, n_pairs;
  kvevict_layer_geometry layer;
  kvevict_geometry geometry;
  float* centers; /* [n_layers, n_q_heads, 3, n_pairs] */
  uint8_t* cache; /* [n_layers, n_kv_heads, n_tokens, head_dim] of f16 */
  kvevict_view views[kMaxLayers];
  kvevict_plane planes[kMaxLayers];
  kvevict_signal_inputs inputs[kMaxLayers];
} recorded;

static recorded* Load(const char* name) {
  recorded* r = calloc(1, sizeof *r);
  const test_npy_entry entries[] = {{&r->k, "K", "<f2", 4},
                                    {&r->re, "q_mean_real", "<f4", 3},
                                    {&r->im, "q_mean_imag", "<f4", 3},
                                    {&r->length, "q_abs_mean", "<f4", 3},
                                    {&r->omega, "omega", "<f4", 1},
                                    {&r->events, "event", "<i4", 2},
                                    {&r->keep, "keep_positions", "<i4", 3}};
  memcpy(r->entries, entries, sizeof entries);
  test_npy_read_all(name, r->entries, 7);
  r->n_layers = r->k.shape[0];
  r->n_kv_heads = r->k.shape[1];
  r->n_tokens = r->k.shape[2];
  r->head_dim = r->k.shape[3];
  r->n_q_heads = r->re.shape[1];
  r->n_pairs = r->omega.shape[0];
  EXPECT(r->n_layers <= kMaxLayers, "%u layers", r->n_layers);
  r->layer = test_layer(r->n_q_heads, r->n_kv_heads, r->head_dim, 0);
  r->layer.k_dtype = KVEVICT_DTYPE_F16;
  r->geometry = test_geometry(r->n_layers, r->n_tokens, &r->layer);
  r->geometry.rope_inv_freq = (const float*)r->omega.bytes;
  r->geometry.rope_inv_freq_len = r->n_pairs;

  const size_t row = r->n_pairs * sizeof(float);
  const size_t n_rows = (size_t)r->n_layers * r->n_q_heads;
  r->centers = malloc(n_rows * 3 * row);
  for (size_t i = 0; i < n_rows; ++i) {
    char* to = (char*)r->centers + i * 3 * row;
    memcpy(to, r->re.bytes + i * row, row);
    memcpy(to + row, r->im.bytes + i * row, row);
    memcpy(to + 2 * row, r->length.bytes + i * row, row);
  }
  const size_t head_bytes = (size_t)r->n_tokens * r->head_dim * 2;
  r->cache = calloc((size_t)r->n_layers * r->n_kv_heads, head_bytes);
  for (uint32_t l = 0; l < r->n_layers; ++l) {
    kvevict_view* view = &r->views[l];
    *view = (kvevict_view)KVEVICT_VIEW_INIT;
    view->n_kv_heads = r->n_kv_heads;
    view->k =
        kvevict_plane_head_major(r->cache + l * r->n_kv_heads * head_bytes,
                                 KVEVICT_DTYPE_F16, r->n_tokens, r->head_dim);
    r->planes[l] = kvevict_plane_head_major(
        r->centers + (size_t)l * r->n_q_heads * 3 * r->n_pairs,
        KVEVICT_DTYPE_F32, 3, r->n_pairs);
    r->inputs[l] = (kvevict_signal_inputs)KVEVICT_SIGNAL_INPUTS_INIT;
    r->inputs[l].query_centers = &r->planes[l];
  }
  return r;
}

static void Free(recorded* r) {
  test_npy_free_all(r->entries, 7);
  free(r->centers);
  free(r->cache);
  free(r);
}

/* Writes tokens [first, first + n) to slots from `slot` on. */
static void Store(recorded* r, uint32_t first, uint32_t n, uint32_t slot) {
  const size_t row = 2 * (size_t)r->head_dim;
  for (uint32_t i = 0; i < r->n_layers * r->n_kv_heads; ++i) {
    const size_t head = (size_t)i * r->n_tokens;
    memcpy(r->cache + (head + slot) * row, r->k.bytes + (head + first) * row,
           n * row);
  }
}

static void Evict(recorded* r, test_plan* p, kvevict_sequence* sequence) {
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.inputs = r->inputs;
  options.inputs_len = r->n_layers;
  EXPECT_OK(kvevict_sequence_evict(sequence, r->views, r->n_layers, &options,
                                   p->workspace, p->workspace_bytes, NULL));
}

/* The positions that layers and heads hold are those of `keep`. */
static void ExpectKept(const recorded* r, const kvevict_sequence* sequence,
                       const int32_t* keep, uint32_t n_keep) {
  int32_t* positions = malloc(r->n_tokens * sizeof *positions);
  for (uint32_t l = 0; l < r->n_layers; ++l) {
    for (uint32_t h = 0; h < r->n_kv_heads; ++h) {
      size_t n = 0;
      EXPECT_OK(kvevict_sequence_keep_positions(sequence, l, h, positions,
                                                r->n_tokens, &n));
      EXPECT(n == n_keep, "%zu kept, not %u", n, n_keep);
      for (size_t i = 0; i < n; ++i) {
        EXPECT(positions[i] == keep[i],
               "layer %u, head %u, slot %zu: %d, not %d", l, h, i, positions[i],
               keep[i]);
      }
    }
  }
  free(positions);
}

Test(vectors, triattention_goes_the_way_of_the_authors_code) {
  recorded* r =
      Load("triattention_official__trajectory_union_interval_gqa4x2_L2_D64");
  test_plan* p = test_plan_create("triattention-original:budget=64,sink=24",
                                  &r->geometry, KVEVICT_OPERATION_EVICT, 1);
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_sequence_create(p->plan, &sequence));
  uint32_t n_seen = 0, n_held = 0;
  for (uint32_t e = 0; e < r->events.shape[0]; ++e) {
    const int32_t* event = (const int32_t*)r->events.bytes + 3 * e;
    const uint32_t n_new = (uint32_t)event[0] - n_seen;
    Store(r, n_seen, n_new, n_held);
    EXPECT_OK(kvevict_sequence_append(sequence, n_new, NULL));
    n_seen += n_new;
    EXPECT(n_held + n_new == (uint32_t)event[1], "event %u: %u held", e,
           n_held + n_new);
    Evict(r, p, sequence);
    n_held = (uint32_t)event[2];
    ExpectKept(r, sequence,
               (const int32_t*)r->keep.bytes + e * r->keep.shape[2], n_held);
  }
  kvevict_sequence_destroy(sequence);
  test_plan_destroy(p);
  Free(r);
}
