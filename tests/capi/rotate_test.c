/* kvevict_rotate() against long double, and against keys that RoPE rotated to the
 * new positions at once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "kvevict/experimental.h"
#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/expect.h"
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

/* A plan for keys of a cache's spec. */
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
  kvevict_geometry geometry = test_geometry(1, max_tokens, &layer);
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

/* The most that rounding to a dtype changes. */
static double StoredBound(kvevict_dtype dtype, double v) {
  if (dtype == KVEVICT_DTYPE_F16) return fmax(fabs(v) * 0x1p-11, 0x1p-25);
  return dtype == KVEVICT_DTYPE_BF16 ? fabs(v) * 0x1p-8 : 0.0;
}

/* ---- Every layout ---- */

static void ExpectTurned(const test_cache* cache, const test_cache* before,
                         const test_cache_trial* t, const rope* r,
                         const float* frequencies, const int32_t* offsets) {
  const kvevict_plane* k = &cache->view.k;
  for (uint32_t h = 0; h < cache->spec.n_kv_heads; ++h) {
    for (uint32_t i = 0; i < t->n_tokens; ++i) {
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
          EXPECT(fabs(got[e] - old[e]) <=
                     3e-7 * size + StoredBound(cache->spec.k_dtype, old[e]),
                 "%s: head %u, slot %u by %d, pair %u: %.9g, not %.9g", t->what,
                 h, i, offset, f, got[e], old[e]);
        }
      }
    }
  }
}

/* Restores the elements that rotated, so that all bytes must be as before. */
static void PutBack(test_cache* cache, const test_cache* before,
                    const test_cache_trial* t, const rope* r) {
  for (uint32_t h = 0; h < cache->spec.n_kv_heads; ++h) {
    for (uint32_t i = 0; i < t->n_tokens; ++i) {
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
  test_cache* ours = test_cache_clone(t->cache);
  kvevict_plan* plan =
      PlanFor(with->context, ours, t->n_tokens, &r, frequencies);
  const kvevict_rotation rotation =
      RotationOf(ours, t->n_tokens, offsets, t->n_lists);
  EXPECT_OK(kvevict_rotate(plan, &rotation, 1, NULL));
  ExpectTurned(ours, t->cache, t, &r, frequencies, offsets);
  PutBack(ours, t->cache, t, &r);
  test_expect_same_bytes(ours, t->cache, t->what);
  kvevict_plan_destroy(plan);
  test_cache_destroy(ours);
}

Test(rotate, every_layout_and_dtype_turns_as_long_double_says) {
  test_random random = test_random_start("rotate layouts");
  test_try_layouts_and_dtypes(6, &random, TryCache);
  for (uint32_t i = 0; i < 120; ++i) { /* with more pairs */
    const test_cache_spec spec = {
        .layout = i % TEST_N_LAYOUTS,
        .n_kv_heads = 1,
        .capacity = 9,
        .k_dtype = 1 + i % 3,
        .k_head_dim = test_random_between(&random, 30, 530)};
    test_try_spec(&spec, &random, TryCache);
  }
}

/* ---- Contiguous positions after an eviction ---- */

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

Test(rotate, survivors_are_as_if_computed_at_their_new_positions) {
  enum { kKept = 50 };
  test_random random = test_random_start("rotate survivors");
  for (int turn = 0; turn < 8; ++turn) {
    const rope r = {kMostPairs, (kvevict_rope_layout)(turn % 2)};
    keys* plain = malloc(sizeof *plain);
    keys* cached = malloc(sizeof *cached);
    for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
      (&plain->rows[0][0][0])[i] = (float)test_random_unit(&random) - 0.5f;
    }
    *cached = *plain;
    for (int32_t i = 0; i < kHeads * kTokens; ++i) {
      float* key = cached->rows[0][i];
      for (uint32_t f = 0; f < r.n_pairs; ++f) {
        double re = key[First(&r, f)], im = key[Second(&r, f)];
        Turn(&re, &im, i % kTokens, inv_freq[f]);
        key[First(&r, f)] = (float)re;
        key[Second(&r, f)] = (float)im;
      }
    }
    int32_t keep[kHeads * kKept], offsets[kHeads * kKept];
    for (int h = 0; h < kHeads; ++h) {
      test_random_ascending(&random, keep + h * kKept, kKept, kTokens);
      for (int i = 0; i < kKept; ++i) {
        offsets[h * kKept + i] = i - keep[h * kKept + i];
      }
    }
    test_plan* plan = PlanOfKeys(&r);
    const kvevict_view view = ViewOf(cached);
    kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
    lists.slots = keep;
    lists.n_lists = kHeads;
    lists.slots_len = kHeads * kKept;
    lists.count = kKept;
    lists.list_stride = kKept;
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.n_tokens = kTokens;
    move.view = &view;
    move.keep = &lists;
    EXPECT_OK(kvevict_compact(plan->context, &move, 1, NULL, 0, NULL));
    kvevict_rotation rotation = KVEVICT_ROTATION_INIT;
    rotation.layer = 1;
    rotation.n_tokens = kKept;
    rotation.n_lists = kHeads;
    rotation.view = &view;
    rotation.offsets = offsets;
    rotation.offsets_len = kHeads * kKept;
    EXPECT_OK(kvevict_rotate(plan->plan, &rotation, 1, NULL));
    for (int i = 0; i < kHeads * kKept; ++i) {
      const int h = i / kKept;
      const float* from = plain->rows[h][keep[i]];
      const float* key = cached->rows[h][i % kKept];
      for (uint32_t f = 0; f < r.n_pairs; ++f) {
        double re = from[First(&r, f)], im = from[Second(&r, f)];
        const double size = fabs(re) + fabs(im);
        Turn(&re, &im, i % kKept, inv_freq[f]);
        /* The cached key was rounded once more. */
        EXPECT(fabs(key[First(&r, f)] - re) <= 4e-7 * size &&
                   fabs(key[Second(&r, f)] - im) <= 4e-7 * size,
               "head %d, survivor %d, pair %u", h, i % kKept, f);
      }
      for (uint32_t e = 2 * r.n_pairs; e < kDim; ++e) {
        EXPECT(key[e] == from[e], "element %u turned", e);
      }
    }
    test_plan_destroy(plan);
    free(plain);
    free(cached);
  }
}

/* ---- Heads of unlike lengths, several layers ---- */

Test(rotate, heads_turn_what_they_hold) {
  const rope r = {4, KVEVICT_ROPE_LAYOUT_HALF};
  static keys two[2], before[2];
  test_random random = test_random_start("rotate heads");
  for (int l = 0; l < 2; ++l) {
    for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
      (&two[l].rows[0][0][0])[i] = (float)test_random_unit(&random) + 0.5f;
    }
  }
  memcpy(before, two, sizeof two);
  int32_t offsets[kTokens];
  for (int i = 0; i < kTokens; ++i) offsets[i] = 5;
  const uint32_t counts[2][kHeads] = {{17, 90}, {0, 1}};
  const kvevict_view views[2] = {ViewOf(&two[0]), ViewOf(&two[1])};
  kvevict_rotation rotations[2];
  for (int l = 0; l < 2; ++l) {
    rotations[l] = (kvevict_rotation)KVEVICT_ROTATION_INIT;
    rotations[l].layer = (uint32_t)l;
    rotations[l].n_tokens = 100;
    rotations[l].view = &views[l];
    rotations[l].token_counts = counts[l];
    rotations[l].offsets = offsets;
    rotations[l].offsets_len = 100;
  }
  test_plan* plan = PlanOfKeys(&r);
  EXPECT_OK(kvevict_rotate(plan->plan, rotations, 2, NULL));
  for (int l = 0; l < 2; ++l) {
    for (int i = 0; i < kHeads * kTokens; ++i) {
      const uint32_t h = (uint32_t)(i / kTokens), t = (uint32_t)(i % kTokens);
      const int is_same = memcmp(two[l].rows[h][t], before[l].rows[h][t],
                                 sizeof two[l].rows[h][t]) == 0;
      EXPECT(is_same == (t >= counts[l][h]), "layer %d, head %u, slot %u", l, h,
             t);
    }
  }
  test_plan_destroy(plan);
}

/* ---- Errors ---- */

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

Test(rotate, frequencies_are_within_bounds) {
  const kvevict_layer_geometry layer = test_layer(1, 1, 8, 8);
  kvevict_geometry geometry = test_geometry(1, 10, &layer);
  const kvevict_policy* policy = test_policy("none");
  kvevict_context* const context = test_context();
  float two[] = {1.0f, 65537.0f};
  geometry.rope_inv_freq = two;
  geometry.rope_inv_freq_len = 2;
  kvevict_plan* plan = NULL;
  EXPECT_INVALID(kvevict_plan_create(context, &geometry, policy, NULL, &plan),
                 "rope_inv_freq[1]", "65537", "65536");
  two[1] = -65536.0f;
  EXPECT_OK(kvevict_plan_create(context, &geometry, policy, NULL, &plan));
  kvevict_plan_destroy(plan);
}
