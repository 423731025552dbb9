/* kvevict_rotate() against long double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/plan.h"
#include "tests/capi/support/policies.h"

enum { kMostPairs = 16, kManyPairs = 256, kMostSlots = 4096 };

static float inv_freq[kMostPairs];

static void DrawFrequencies(void) {
  for (int f = 0; f < kMostPairs; ++f) {
    inv_freq[f] = powf(10000.0f, -(float)f / kMostPairs);
  }
}
TestSuite(rotate, .init = DrawFrequencies);

typedef struct rope {
  uint32_t n_pairs;
  kvevict_rope_layout layout;
} rope;

static uint32_t First(const rope* r, uint32_t f) {
  return r->layout == KVEVICT_ROPE_LAYOUT_HALF ? f : 2 * f;
}
static uint32_t Second(const rope* r, uint32_t f) {
  return r->layout == KVEVICT_ROPE_LAYOUT_HALF ? f + r->n_pairs : 2 * f + 1;
}

/* Rotates a pair. The angle is exact. */
static void Turn(double* re, double* im, int64_t offset, float frequency) {
  const long double angle = (long double)offset * frequency;
  const double c = (double)cosl(angle), s = (double)sinl(angle);
  const double x = *re, y = *im;
  *re = x * c - y * s;
  *im = x * s + y * c;
}

/* A plan for two layers of keys of a cache's spec. */
static kvevict_plan* PlanFor(const kvevict_context* with,
                             const test_cache* cache, uint32_t max_tokens,
                             const rope* r, const float* frequencies) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  const test_cache_spec* spec = &cache->spec;
  const int is_opaque = spec->k_dtype == KVEVICT_DTYPE_OPAQUE;
  layer.n_q_heads = layer.n_kv_heads = spec->n_kv_heads;
  layer.k_dtype = spec->k_dtype;
  layer.k_head_dim = is_opaque ? 0 : spec->k_head_dim;
  layer.v_dtype = spec->v_dtype;
  layer.v_head_dim =
      spec->v_dtype == KVEVICT_DTYPE_OPAQUE ? 0 : spec->v_head_dim;
  kvevict_geometry geometry = test_geometry(2, max_tokens, &layer);
  geometry.rope_layout = r->layout;
  geometry.rope_inv_freq = frequencies;
  geometry.rope_inv_freq_len = r->n_pairs;
  const kvevict_policy* policy = test_policy("none");
  kvevict_plan* plan = NULL;
  EXPECT_OK(kvevict_plan_create(with, &geometry, policy, NULL, &plan));
  return plan;
}

static kvevict_rotation RotationOf(const test_cache* cache, uint32_t n_tokens,
                                   const int32_t* offsets, uint32_t n_lists) {
  kvevict_rotation rotation = KVEVICT_ROTATION_INIT;
  rotation.n_tokens = n_tokens;
  rotation.n_lists = n_lists;
  rotation.view = &cache->view;
  rotation.offsets = offsets;
  rotation.offsets_len = (size_t)n_lists * n_tokens;
  return rotation;
}

/* ---- Every layout ---- */

static void ExpectTurned(const test_cache* cache, const test_cache* before,
                         const test_cache_trial* t, const rope* r,
                         const float* frequencies, const int32_t* offsets,
                         const uint32_t* held) {
  const kvevict_plane* k = &cache->view.k;
  for (uint32_t h = 0; h < cache->spec.n_kv_heads; ++h) {
    for (uint32_t i = 0; i < held[h]; ++i) {
      const int32_t offset =
          offsets[(t->n_lists == 1 ? 0 : h) * t->n_tokens + i];
      for (uint32_t f = 0; f < r->n_pairs; ++f) {
        const uint32_t at[] = {First(r, f), Second(r, f)};
        double old[2], got[2];
        for (int e = 0; e < 2; ++e) {
          old[e] = (double)test_cache_get(before, &before->view.k, i, h, at[e]);
          got[e] = (double)test_cache_get(cache, k, i, h, at[e]);
        }
        if (offset == 0) {
          EXPECT(memcmp(old, got, sizeof old) == 0, "%s: turned by 0", t->what);
          continue;
        }
        const double size = fabs(old[0]) + fabs(old[1]);
        if (!isfinite(size)) { /* it spreads over its pair alone */
          EXPECT(!isfinite(got[0]) || !isfinite(got[1]), "%s", t->what);
          continue;
        }
        Turn(&old[0], &old[1], offset, frequencies[f]);
        for (int e = 0; e < 2; ++e) {
          EXPECT(
              fabs(got[e] - old[e]) <=
                  3e-7 * size + test_stored_bound(cache->spec.k_dtype, old[e]),
              "%s: head %u, slot %u by %d, pair %u: %.9g, not %.9g", t->what, h,
              i, offset, f, got[e], old[e]);
        }
      }
    }
  }
}

/* Restores the elements that rotated, so that all bytes must be as before. */
static void PutBack(test_cache* cache, const test_cache* before, const rope* r,
                    const uint32_t* held) {
  for (uint32_t h = 0; h < cache->spec.n_kv_heads; ++h) {
    for (uint32_t i = 0; i < held[h]; ++i) {
      for (uint32_t e = 0; e < 2 * r->n_pairs; ++e) {
        test_cache_set(cache, &cache->view.k, i, h, e,
                       test_cache_get(before, &before->view.k, i, h, e));
      }
    }
  }
}

static void TryCache(const test_any_context* with, const test_cache_trial* t,
                     test_random* random) {
  static int32_t offsets[kMostSlots];
  const test_cache_spec* spec = &t->cache->spec;
  if (spec->k_dtype == KVEVICT_DTYPE_OPAQUE || spec->k_head_dim < 2) return;
  rope r = {1 + test_random_below(random, spec->k_head_dim / 2),
            (kvevict_rope_layout)test_random_below(random, 2)};
  if (r.n_pairs > kManyPairs) r.n_pairs = kManyPairs;
  float frequencies[kManyPairs];
  for (uint32_t f = 0; f < r.n_pairs; ++f) {
    frequencies[f] = f == 2 ? -0.25f
                            : powf(test_random_coin(random) ? 1e4f : 5e5f,
                                   -(float)f / (float)r.n_pairs);
  }
  /* Near and far ones of both signs, some of them shared by neighbours. */
  for (uint32_t i = 0; i < t->n_lists * t->n_tokens; ++i) {
    const int32_t far = (int32_t)test_random_below(random, 1u << 31);
    const int32_t kinds[] = {0,   -(int32_t)test_random_below(random, 100000),
                             far, -far,
                             1,   i == 0 ? 7 : offsets[i - 1]};
    offsets[i] = kinds[test_random_below(random, 6)];
  }
  if (spec->k_dtype == KVEVICT_DTYPE_F32 && test_random_coin(random)) {
    static const float kOdd[] = {NAN, INFINITY, -INFINITY};
    test_cache_set(t->cache, &t->cache->view.k, 0, 0,
                   test_random_below(random, 2 * r.n_pairs),
                   kOdd[test_random_below(random, 3)]);
  }
  uint32_t held[4];
  const bool ragged = test_random_coin(random);
  for (uint32_t h = 0; h < spec->n_kv_heads; ++h) {
    held[h] = ragged ? test_random_below(random, t->n_tokens + 1) : t->n_tokens;
  }
  test_cache* ours = test_cache_clone(t->cache);
  test_cache* other = test_cache_clone(t->cache); /* of the second layer */
  kvevict_plan* plan =
      PlanFor(with->context, ours, t->n_tokens, &r, frequencies);
  kvevict_rotation both[2] = {
      RotationOf(ours, t->n_tokens, offsets, t->n_lists),
      RotationOf(other, t->n_tokens, offsets, t->n_lists)};
  both[1].layer = 1;
  if (ragged) both[0].token_counts = both[1].token_counts = held;
  EXPECT_OK(kvevict_rotate(plan, both, 2, NULL));
  test_expect_same_bytes(ours, other, t->what);
  ExpectTurned(ours, t->cache, t, &r, frequencies, offsets, held);
  PutBack(ours, t->cache, &r, held);
  test_expect_same_bytes(ours, t->cache, t->what);
  test_cache_destroy(other);
  kvevict_plan_destroy(plan);
  test_cache_destroy(ours);
}

Test(rotate, every_layout_and_dtype_turns_as_long_double_says) {
  test_random random = test_random_start("rotate layouts");
  test_try_layouts_and_dtypes(6, &random, TryCache);
  for (uint32_t i = 0; i < 120; ++i) { /* with more pairs */
    if (!test_runs(i)) continue;
    const test_cache_spec spec = {
        .layout = i % TEST_N_LAYOUTS,
        .n_kv_heads = 1,
        .capacity = 9,
        .k_dtype = 1 + i % 3,
        .k_head_dim = test_random_between(&random, 30, 530)};
    test_try_spec(&spec, &random, TryCache);
  }
}

/* ---- Errors ---- */

enum { kHeads = 2, kTokens = 300, kDim = 2 * kMostPairs + 3 };

typedef struct keys {
  float rows[kHeads][kTokens][kDim];
} keys;

static kvevict_view ViewOf(keys* k) {
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = kHeads;
  view.k = kvevict_plane_head_major(k->rows, KVEVICT_DTYPE_F32, kTokens, kDim);
  return view;
}

static test_plan* PlanOfKeys(const rope* r) {
  const kvevict_layer_geometry layer = test_layer(kHeads, kHeads, kDim, 0);
  kvevict_geometry geometry = test_geometry(2, kTokens, &layer);
  geometry.rope_layout = r->layout;
  geometry.rope_inv_freq = inv_freq;
  geometry.rope_inv_freq_len = r->n_pairs;
  return test_plan_create("knorm:sink=0,budget=50", &geometry,
                          KVEVICT_OPERATION_SCORE, 1);
}

Test(rotate, says_what_is_wrong_and_changes_nothing) {
  const rope r = {4, KVEVICT_ROPE_LAYOUT_HALF};
  test_plan* p = PlanOfKeys(&r);
  static keys k, before;
  memset(&k, 0x3f, sizeof k);
  before = k;
  int32_t offsets[kHeads * kTokens];
  for (int i = 0; i < kHeads * kTokens; ++i) offsets[i] = 1;
  const kvevict_view view = ViewOf(&k);
  kvevict_rotation good = KVEVICT_ROTATION_INIT;
  good.n_tokens = 10;
  good.view = &view;
  good.offsets = offsets;
  good.offsets_len = 10;
  EXPECT_INVALID(kvevict_rotate(NULL, &good, 1, NULL), "plan", "NULL");
  EXPECT_INVALID(kvevict_rotate(p->plan, NULL, 1, NULL), "rotations", "NULL");
  EXPECT_INVALID(kvevict_rotate(p->plan, &good, KVEVICT_MAX_JOBS + 1, NULL),
                 "rotations_len 129", "128");
  EXPECT_OK(kvevict_rotate(p->plan, NULL, 0, NULL));
#define EXPECT_BAD(change, ...)                                          \
  do {                                                                   \
    kvevict_rotation bad = good;                                         \
    change;                                                              \
    EXPECT_INVALID(kvevict_rotate(p->plan, &bad, 1, NULL), __VA_ARGS__); \
  } while (0)
  EXPECT_BAD(bad.layer = 2, "layer 2", "n_layers 2");
  EXPECT_BAD(bad.view = NULL, "view", "NULL");
  EXPECT_BAD(bad.n_tokens = 0, "n_tokens 0");
  EXPECT_BAD(bad.n_tokens = kTokens + 1, "n_tokens 301", "300");
  EXPECT_BAD(bad.n_lists = 3, "n_lists 3", "n_kv_heads 2");
  EXPECT_BAD(bad.n_lists = 0, "n_lists 0");
  EXPECT_BAD(bad.n_lists = 2, "offsets_len 10", "n_lists 2", "n_tokens 10");
  EXPECT_BAD(bad.offsets = NULL, "offsets", "NULL");
  const uint32_t counts[kHeads] = {10, 11};
  EXPECT_BAD(bad.token_counts = counts, "token_counts[1] 11", "10");
  kvevict_view other = view;
  other.k.head_dim = kDim - 1;
  EXPECT_BAD(bad.view = &other, "k.head_dim 34", "35");
  other.k = (kvevict_plane)KVEVICT_PLANE_INIT;
  EXPECT_BAD(bad.view = &other, "view");
  GROWN(kvevict_rotation) grown;
  grown.value = good;
  EXPECT_CHECKS_STRUCT_SIZE(grown,
                            kvevict_rotate(p->plan, &grown.value, 1, NULL));
  memcpy(&k, &before, sizeof k); /* the one good call rotated these */
  const kvevict_rotation twice[] = {good, good};
  EXPECT_INVALID(kvevict_rotate(p->plan, twice, 2, NULL), "rotations[1].view",
                 "rotations[0]");
  kvevict_rotation apart[] = {good, good};
  other = view;
  other.k.data += sizeof k.rows[0][0];
  apart[1].view = &other;
  EXPECT_INVALID(kvevict_rotate(p->plan, apart, 2, NULL), "rotations");
  apart[1].layer = 9;
  EXPECT_INVALID(kvevict_rotate(p->plan, apart, 2, NULL), "rotations[1]",
                 "layer 9");
  EXPECT(memcmp(&k, &before, sizeof k) == 0, "a refused call turned keys");
  test_plan_destroy(p);
}

Test(rotate, needs_frequencies_and_keys_that_can_be_read) {
  static const struct {
    kvevict_dtype k_dtype;
    uint32_t n_pairs;
    kvevict_reason reason;
    const char* text;
  } kRows[] = {
      {KVEVICT_DTYPE_BF16, 4, KVEVICT_REASON_NONE, ""},
      {KVEVICT_DTYPE_BF16, 0, KVEVICT_REASON_NO_ROPE, "rope_inv_freq"},
      {KVEVICT_DTYPE_OPAQUE, 4, KVEVICT_REASON_OPAQUE_KEYS, "opaque"},
      {KVEVICT_DTYPE_FP8_E4M3, 4, KVEVICT_REASON_QUANTIZED_KEYS, "quantized"},
  };
  kvevict_context* const context = test_context();
  test_random random = {1};
  for (size_t i = 0; i < sizeof kRows / sizeof kRows[0]; ++i) {
    const test_cache_spec spec = {TEST_TOKEN_MAJOR,  1, 4, kRows[i].k_dtype, 8,
                                  KVEVICT_DTYPE_F32, 8, 0};
    test_cache* cache = test_cache_create(&spec, &random);
    const rope r = {kRows[i].n_pairs, KVEVICT_ROPE_LAYOUT_HALF};
    kvevict_plan* plan = PlanFor(context, cache, 4, &r, inv_freq);
    kvevict_capabilities can = {.struct_size = sizeof can};
    EXPECT_OK(kvevict_plan_capabilities(plan, 0, &can));
    EXPECT(can.rotate_reason == kRows[i].reason &&
               can.can_rotate == (kRows[i].reason == KVEVICT_REASON_NONE),
           "row %zu: reason %d", i, (int)can.rotate_reason);
    const int32_t offsets[4] = {0};
    const kvevict_rotation rotation = RotationOf(cache, 4, offsets, 1);
    if (can.can_rotate) {
      EXPECT_OK(kvevict_rotate(plan, &rotation, 1, NULL));
    } else {
      EXPECT_FAILS(kvevict_rotate(plan, &rotation, 1, NULL),
                   KVEVICT_ERROR_UNSUPPORTED, "cannot rotate", kRows[i].text);
    }
    kvevict_plan_destroy(plan);
    test_cache_destroy(cache);
  }
}
