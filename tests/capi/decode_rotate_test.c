/* Evictions that rotate the keys they move: each key is what RoPE would have made
 * it at its slot, however often it moved. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/experimental.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/inputs.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"
#include "tests/capi/support/random.h"

enum {
  kLayers = 3,
  kHeads = 2,
  kGroup = 2,
  kDim = 24,
  kPairs = 10, /* four elements are not rotated */
  kSlots = 96,
  kPositions = 800
};

/* The engine knows its keys before RoPE, so it knows them at every slot. */
typedef struct engine {
  float inv_freq[kPairs];
  kvevict_rope_layout layout;
  kvevict_layer_geometry layer;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_sequence* sequence;
  test_cache* caches[kLayers];
  kvevict_view views[kLayers];
  float (*keys)[kPositions][kHeads][kDim]; /* [kLayers], before RoPE */
  float (*queries)[kPositions][kHeads * kGroup][kDim];
  void* workspace;
  size_t workspace_bytes;
  uint32_t n_seen;
} engine;

static void TurnTo(const engine* e, const float* row, uint32_t slot,
                   double* out) {
  for (uint32_t i = 0; i < kDim; ++i) out[i] = (double)row[i];
  for (uint32_t f = 0; f < kPairs; ++f) {
    const bool halves = e->layout == KVEVICT_ROPE_LAYOUT_HALF;
    const uint32_t a = halves ? f : 2 * f;
    const uint32_t b = halves ? f + kPairs : 2 * f + 1;
    const long double angle = (long double)slot * e->inv_freq[f];
    const double c = (double)cosl(angle), s = (double)sinl(angle);
    out[a] = (double)row[a] * c - (double)row[b] * s;
    out[b] = (double)row[a] * s + (double)row[b] * c;
  }
}

/* The length of the pair that an element is in, or its own size. */
static double PairSize(const engine* e, const float* row, uint32_t i) {
  uint32_t other = i;
  if (i < 2 * kPairs) {
    other = e->layout != KVEVICT_ROPE_LAYOUT_HALF ? i ^ 1
            : i < kPairs                          ? i + kPairs
                                                  : i - kPairs;
  }
  return fabs((double)row[i]) + fabs((double)row[other]);
}

static engine* Create(const char* policy, kvevict_dtype dtype,
                      kvevict_rope_layout layout, uint64_t seed) {
  test_random random = {seed};
  engine* e = calloc(1, sizeof *e);
  e->layout = layout;
  for (int f = 0; f < kPairs; ++f) {
    e->inv_freq[f] = powf(10000.0f, -(float)f / kPairs);
  }
  e->layer = (kvevict_layer_geometry)KVEVICT_LAYER_GEOMETRY_INIT;
  e->layer.n_q_heads = kHeads * kGroup;
  e->layer.n_kv_heads = kHeads;
  e->layer.k_head_dim = e->layer.v_head_dim = kDim;
  e->layer.k_dtype = e->layer.v_dtype = dtype;
  kvevict_geometry geometry = test_geometry(kLayers, kSlots, &e->layer);
  geometry.rope_layout = layout;
  geometry.rope_inv_freq = e->inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  const kvevict_policy* p = test_policy(policy);
  e->context = test_context();
  EXPECT_OK(kvevict_plan_create(e->context, &geometry, p, NULL, &e->plan));
  EXPECT_OK(kvevict_sequence_create(e->plan, &e->sequence));
  kvevict_workspace w = {.struct_size = sizeof w};
  EXPECT_OK(
      kvevict_plan_workspace(e->plan, KVEVICT_OPERATION_EVICT, kSlots, &w));
  e->workspace_bytes = w.best_bytes;
  e->workspace = aligned_alloc(256, (w.best_bytes + 255) / 256 * 256 + 256);
  e->keys = malloc(sizeof(float[kLayers][kPositions][kHeads][kDim]));
  e->queries =
      malloc(sizeof(float[kLayers][kPositions][kHeads * kGroup][kDim]));
  float* numbers = &e->keys[0][0][0][0];
  for (size_t i = 0; i < (size_t)kLayers * kPositions * kHeads * kDim; ++i) {
    numbers[i] = test_random_normal(&random);
  }
  numbers = &e->queries[0][0][0][0];
  for (size_t i = 0; i < (size_t)kLayers * kPositions * kHeads * kGroup * kDim;
       ++i) {
    numbers[i] = test_random_normal(&random);
  }
  for (int l = 0; l < kLayers; ++l) {
    const test_cache_spec spec = {.capacity = kSlots,
                                  .n_kv_heads = kHeads,
                                  .k_head_dim = kDim,
                                  .v_head_dim = kDim,
                                  .k_dtype = dtype,
                                  .v_dtype = dtype,
                                  .layout = l == 0   ? TEST_TOKEN_MAJOR
                                            : l == 1 ? TEST_HEAD_MAJOR
                                                     : TEST_PAGED_3};
    e->caches[l] = test_cache_create(&spec, &random);
    e->views[l] = e->caches[l]->view;
  }
  return e;
}

static void Destroy(engine* e) {
  kvevict_sequence_destroy(e->sequence);
  kvevict_plan_destroy(e->plan);
  for (int l = 0; l < kLayers; ++l) test_cache_destroy(e->caches[l]);
  free(e->keys);
  free(e->queries);
  free(e->workspace);
  free(e);
}

/* Adds a token whose key and query are rotated to the slot that the key takes. */
static void Step(engine* e) {
  const uint32_t p = e->n_seen;
  float queries[kHeads * kGroup][kDim];
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      uint32_t slot;
      EXPECT_OK(kvevict_sequence_stored_length(e->sequence, l, h, &slot));
      double row[kDim];
      TurnTo(e, e->keys[l][p][h], slot, row);
      for (uint32_t i = 0; i < kDim; ++i) {
        test_cache_set(e->caches[l], &e->caches[l]->view.k, slot, h, i,
                       (float)row[i]);
        test_cache_set(e->caches[l], &e->caches[l]->view.v, slot, h, i,
                       (float)p);
      }
      for (uint32_t g = 0; g < kGroup; ++g) {
        TurnTo(e, e->queries[l][p][h * kGroup + g], slot, row);
        for (uint32_t i = 0; i < kDim; ++i) {
          queries[h * kGroup + g][i] = (float)row[i];
        }
      }
    }
    const kvevict_plane plane = kvevict_plane_token_major(
        queries, KVEVICT_DTYPE_F32, sizeof queries / sizeof queries[0], kDim);
    EXPECT_OK(test_observe(e->sequence, l, &plane, 1, p));
  }
  EXPECT_OK(kvevict_sequence_append(e->sequence, 1, NULL));
  ++e->n_seen;
}

static kvevict_status Evict(engine* e) {
  return kvevict_sequence_evict(e->sequence, e->views, kLayers, NULL,
                                e->workspace, e->workspace_bytes, NULL);
}

/* Values tell which token a slot has. Its key must be that token's at this slot.
 * Each rotation of f16 or bf16 rounds once more. */
static void Check(const engine* e, uint32_t n_evictions, const char* what) {
  const kvevict_dtype dtype = e->layer.k_dtype;
  const double rounding = dtype == KVEVICT_DTYPE_F32   ? 0x1p-22
                          : dtype == KVEVICT_DTYPE_F16 ? 0x1p-11
                                                       : 0x1p-8;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t h = 0; h < kHeads; ++h) {
      uint32_t stored;
      EXPECT_OK(kvevict_sequence_stored_length(e->sequence, l, h, &stored));
      for (uint32_t slot = 0; slot < stored; ++slot) {
        int32_t position;
        EXPECT_OK(kvevict_sequence_position_of_slot(e->sequence, l, h, slot,
                                                    &position));
        double row[kDim];
        TurnTo(e, e->keys[l][position][h], slot, row);
        const kvevict_plane* k = &e->caches[l]->view.k;
        for (uint32_t i = 0; i < kDim; ++i) {
          const double got =
              (double)test_cache_get(e->caches[l], k, slot, h, i);
          /* Rotation keeps a pair's length, which bounds its elements, and
           * mixes their errors. */
          const double bound = (1.5 * n_evictions + 1) * rounding *
                               PairSize(e, e->keys[l][position][h], i);
          EXPECT(fabs(got - row[i]) <= bound,
                 "%s: layer %u, head %u, slot %u has %d, element %u: %.9g, not "
                 "%.9g",
                 what, l, h, slot, position, i, got, row[i]);
        }
      }
    }
  }
}

Test(decode_rotate, keys_are_as_if_turned_to_their_slots_at_once) {
  static const char* const kTexts[] = {
      "streaming-llm:budget=40,sink=4,rotate=yes,margin=15",
      "knorm:sink=0,budget=40,rotate=yes,margin=20",
      "snapkv:budget=40,sink=2,window=8,heads=adaptive,rotate=yes,margin=16",
      "pyramidkv:budget=40,sink=2,window=8,alpha=0.8,rotate=yes,margin=24",
      "keydiff:sink=0,budget=40,scope=model,rotate=yes,margin=30",
      "tova:budget=40,rotate=yes",
      "streaming-llm-original-decode:recent=36"};
  static const kvevict_dtype kDtypes[] = {KVEVICT_DTYPE_F32, KVEVICT_DTYPE_BF16,
                                          KVEVICT_DTYPE_F16};
  for (uint32_t i = 0; i < 7; ++i) {
    /* A policy that moves rows at every step rounds too often for less than f32. */
    for (uint32_t d = 0; d < (i >= 5 ? 1u : 3u); ++d) {
      engine* e = Create(kTexts[i], kDtypes[d],
                         (kvevict_rope_layout)((i + d) % 2), 10 * i + d);
      EXPECT_OK(kvevict_sequence_begin_observing(e->sequence, NULL, 0));
      uint32_t n_evictions = 0;
      while (e->n_seen < 300) {
        Step(e);
        if (e->n_seen < 40) continue;
        kvevict_evict_report report = KVEVICT_EVICT_REPORT_INIT;
        EXPECT_OK(Evict(e));
        EXPECT_OK(kvevict_sequence_report(e->sequence, &report, NULL, 0));
        n_evictions += report.evicted;
        if (report.evicted && n_evictions % 4 == 1) {
          Check(e, n_evictions, kTexts[i]);
        }
      }
      EXPECT(n_evictions >= 4, "%s: %u evictions", kTexts[i], n_evictions);
      Check(e, n_evictions, kTexts[i]);
      Destroy(e);
    }
  }
}

/* The window's queries were rotated for other slots. */
Test(decode_rotate, observed_queries_are_forgotten) {
  engine* e = Create("snapkv:budget=30,sink=2,window=4,rotate=yes",
                     KVEVICT_DTYPE_F32, KVEVICT_ROPE_LAYOUT_HALF, 3);
  EXPECT_OK(kvevict_sequence_begin_observing(e->sequence, NULL, 0));
  while (e->n_seen < 60) Step(e);
  EXPECT_OK(Evict(e));
  for (int i = 0; i < 3; ++i) Step(e);
  EXPECT_INVALID(Evict(e), "window");
  Step(e);
  EXPECT_OK(Evict(e));
  Check(e, 2, "window of 4");
  Destroy(e);
}

Test(decode_rotate, what_cannot_be_turned_is_refused_before_a_byte_moves) {
  engine* e = Create("knorm:sink=0,budget=30,rotate=yes", KVEVICT_DTYPE_F32,
                     KVEVICT_ROPE_LAYOUT_HALF, 4);
  const test_cache_spec spec = {
      TEST_TOKEN_MAJOR,  kHeads, kSlots, KVEVICT_DTYPE_OPAQUE, kDim,
      KVEVICT_DTYPE_F32, kDim,   0};
  e->layer.k_dtype = KVEVICT_DTYPE_OPAQUE;
  e->layer.k_head_dim = 0;
  kvevict_geometry geometry = test_geometry(kLayers, kSlots, &e->layer);
  geometry.rope_inv_freq = e->inv_freq;
  geometry.rope_inv_freq_len = kPairs;
  const kvevict_policy* p = test_policy("streaming-llm:budget=30,rotate=yes");
  kvevict_plan* plan = NULL;
  kvevict_sequence* sequence = NULL;
  EXPECT_OK(kvevict_plan_create(e->context, &geometry, p, NULL, &plan));
  EXPECT_OK(kvevict_sequence_create(plan, &sequence));
  EXPECT_OK(kvevict_sequence_append(sequence, 60, NULL));
  test_random random = {1};
  test_cache *caches[kLayers], *before[kLayers];
  kvevict_view views[kLayers];
  for (int l = 0; l < kLayers; ++l) {
    caches[l] = test_cache_create(&spec, &random);
    before[l] = test_cache_clone(caches[l]);
    views[l] = caches[l]->view;
  }
  EXPECT_FAILS(kvevict_sequence_evict(sequence, views, kLayers, NULL,
                                      e->workspace, e->workspace_bytes, NULL),
               KVEVICT_ERROR_UNSUPPORTED, "layer 0: cannot rotate");
  for (int l = 0; l < kLayers; ++l) {
    test_expect_same_bytes(caches[l], before[l], "refused");
    test_cache_destroy(before[l]);
    test_cache_destroy(caches[l]);
  }
  kvevict_sequence_destroy(sequence);
  kvevict_plan_destroy(plan);
  Destroy(e);
}
