/* Merging moves of kvevict_compact() against the oracle, in every layout and dtype. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/merged.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

/* Uses exactly the workspace asked for, with guard bytes behind it. */
static kvevict_status Compact(const kvevict_context* with,
                              const kvevict_move* moves, size_t n) {
  kvevict_workspace needs = {.struct_size = sizeof needs};
  kvevict_status status = kvevict_compact_workspace(with, moves, n, &needs);
  if (status != KVEVICT_OK) return status;
  const size_t bytes = (size_t)needs.least_bytes;
  EXPECT(bytes > 0, "no workspace to merge in");
  uint8_t* const workspace = test_workspace_memory(bytes);
  memset(workspace, TEST_GUARD, bytes + 64);
  status = kvevict_compact(with, moves, n, workspace, bytes, NULL);
  EXPECT(test_is_filled(workspace + bytes, 64), "wrote behind the workspace");
  free(workspace);
  return status;
}

enum { kMostTokens = 400 };

static bool CanMerge(const test_cache* cache, kvevict_merge merge) {
  const bool has_values = cache->spec.v_head_dim > 0;
  if (cache->view.k.dtype == KVEVICT_DTYPE_OPAQUE) return false;
  if (has_values) return cache->view.v.dtype != KVEVICT_DTYPE_OPAQUE;
  return merge != KVEVICT_MERGE_VALUES;
}

static uint32_t n_compared;

/* Rows that are not finite, or whose squares are not, take no part. */
static void MakeOdd(test_cache* cache, const kvevict_plane* plane,
                    test_random* random) {
  static const float kOdd[] = {NAN, INFINITY, -INFINITY, 1e30f};
  for (int i = 0; i < 5; ++i) {
    test_cache_set(cache, plane,
                   test_random_below(random, cache->spec.capacity),
                   test_random_below(random, cache->spec.n_kv_heads),
                   test_random_below(random, plane->head_dim),
                   kOdd[test_random_below(random, 4)]);
  }
}

static void TryCache(const test_any_context* with, const test_cache_trial* t,
                     test_random* random) {
  static int32_t keep[4 * kMostTokens];
  const uint32_t heads = t->cache->view.n_kv_heads;
  for (int v = 0; v < 2; ++v) {
    const kvevict_plane* plane = test_cache_plane(t->cache, (uint32_t)v);
    if (plane == NULL || plane->dtype != KVEVICT_DTYPE_F32) continue;
    if (test_random_below(random, 3) == 0) MakeOdd(t->cache, plane, random);
  }
  /* Several heads may share one list, or have lists of different lengths. */
  uint32_t counts[4], n_keep = 0;
  const bool ragged = t->n_lists > 1 && test_random_coin(random);
  for (uint32_t l = 0; l < t->n_lists; ++l) {
    counts[l] = l > 0 && !ragged ? counts[0]
                                 : test_random_below(random, t->n_tokens + 1);
    if (counts[l] > n_keep) n_keep = counts[l];
  }
  for (uint32_t l = 0; l < t->n_lists; ++l) {
    test_random_ascending(random, keep + l * t->n_tokens, counts[l],
                          t->n_tokens);
  }
  kvevict_keep_lists lists = KVEVICT_KEEP_LISTS_INIT;
  lists.n_lists = t->n_lists;
  lists.slots = keep;
  lists.slots_len = sizeof keep / sizeof *keep;
  lists.list_stride = t->n_tokens;
  lists.count = n_keep;
  lists.counts = ragged ? counts : NULL;
  test_cache* ours = test_cache_clone(t->cache);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = t->n_tokens;
  move.view = &ours->view;
  move.keep = &lists;
  move.merge = (kvevict_merge)test_random_between(random, 1, 3);
  if (test_random_coin(random)) move.merge_threshold = 0.3;
  if (test_random_coin(random)) move.merge_fraction = 0.6;
  if (!CanMerge(ours, move.merge)) {
    EXPECT_FAILS(
        Compact(with->context, &move, 1), KVEVICT_ERROR_UNSUPPORTED,
        "cannot merge",
        ours->view.k.dtype == KVEVICT_DTYPE_OPAQUE ? "k_dtype" : "v_dtype");
    test_expect_same_bytes(ours, t->cache, t->what);
    test_cache_destroy(ours);
    return;
  }
  /* Companions, and rows that nothing merges into, are as without merging. */
  test_cache* theirs = test_cache_clone(t->cache);
  oracle_compact_lists(&theirs->view, &lists);
  EXPECT_OK(Compact(with->context, &move, 1));
  for (uint32_t h = 0; h < heads; ++h) {
    const uint32_t l = t->n_lists == 1 ? 0 : h;
    n_compared +=
        test_expect_merged(t->cache, ours, theirs, h, t->n_tokens,
                           keep + l * t->n_tokens, counts[l], move.merge,
                           move.merge_threshold, move.merge_fraction, t->what);
  }
  test_expect_same_outside(ours, t->cache, 0, t->n_tokens, t->what);
  test_cache_destroy(ours);
  test_cache_destroy(theirs);
}

Test(moves_merge, every_layout_and_dtype_merges_as_the_oracle_says) {
  test_random random = test_random_start("compact merge layouts");
  test_try_layouts_and_dtypes(6, &random, TryCache);
  for (uint32_t i = 0; i < 30; ++i) { /* long rows, and many */
    if (!test_runs(i)) continue;
    const bool is_long = i % 2 == 0;
    const test_cache_spec spec = {
        .layout = i % TEST_N_LAYOUTS,
        .n_kv_heads = test_random_between(&random, 1, 2),
        .capacity = is_long ? 70 : kMostTokens,
        .k_dtype = 1 + i % 3,
        .k_head_dim = test_random_between(&random, 1, is_long ? 600 : 40),
        .v_dtype = test_random_between(&random, 1, 3),
        .v_head_dim = test_random_between(&random, 1, is_long ? 600 : 40)};
    test_try_spec(&spec, &random, TryCache);
  }
  EXPECT(n_compared > (test_on_cuda() ? 5 : 200), "only %u heads could be told",
         n_compared);
}

/* Any number of threads, any layout and any target that multiplies and adds at once
 * give the same bytes. */
Test(moves_merge, contexts_and_layouts_make_the_same_bytes) {
  test_random random = test_random_start("compact merge bytes");
  for (int trial = 0; trial < 30; ++trial) {
    const kvevict_dtype dtype = 1 + trial % 3;
    const uint32_t dim = test_random_between(&random, 1, trial < 9 ? 300 : 40);
    test_cache_spec spec = {TEST_TOKEN_MAJOR, 4, 80, dtype, dim, dtype, 9, 0};
    test_cache* first = test_cache_create(&spec, &random);
    test_cache* merged = NULL;
    int32_t keep[4 * 30];
    for (int h = 0; h < 4; ++h) {
      test_random_ascending(&random, keep + h * 30, 30, 80);
    }
    const kvevict_keep_lists lists = test_lists(keep, 30, 4);
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.n_tokens = 80;
    move.keep = &lists;
    move.merge = 1 + trial / 3 % 3;
    for (int i = 0; i < 8; ++i) {
      test_any_context with = test_draw_context(&random);
      for (int tries = 0; !with.is_fused && tries < 60; ++tries) {
        with = test_draw_context(&random);
      }
      spec.layout = test_random_below(&random, TEST_N_LAYOUTS);
      test_cache* other = test_cache_create(&spec, &random);
      test_cache_copy_rows(other, first, 80);
      move.view = &other->view;
      EXPECT_OK(Compact(with.context, &move, 1));
      if (merged != NULL) {
        test_expect_same_rows(other, merged, 30, with.simd);
        test_cache_destroy(merged);
      }
      merged = other;
    }
    test_cache_destroy(first);
    test_cache_destroy(merged);
  }
}

/* Merges a head whose rows have one element, on any target. */
static test_cache* MergeNumbers(test_random* random, kvevict_dtype dtype,
                                const float* keys, const float* values,
                                uint32_t n, uint32_t n_keep,
                                kvevict_merge merge) {
  const test_cache_spec spec = {TEST_TOKEN_MAJOR, 1, n, dtype, 1, dtype, 1, 0};
  test_cache* cache = test_cache_create(&spec, random);
  int32_t keep[80];
  for (uint32_t t = 0; t < n; ++t) {
    test_cache_set(cache, &cache->view.k, t, 0, 0, keys[t]);
    test_cache_set(cache, &cache->view.v, t, 0, 0, values[t]);
    keep[t] = (int32_t)t;
  }
  const kvevict_keep_lists lists = test_lists(keep, n_keep, 1);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n;
  move.view = &cache->view;
  move.keep = &lists;
  move.merge = merge;
  EXPECT_OK(Compact(test_draw_context(random).context, &move, 1));
  return cache;
}

static void ExpectNumbers(test_cache* cache, const kvevict_plane* plane,
                          const float* wanted, uint32_t n) {
  for (uint32_t t = 0; t < n; ++t) {
    const float got = test_cache_get(cache, plane, t, 0, 0);
    EXPECT(got == wanted[t], "slot %u of %u: %.9g, not %.9g", t, n, (double)got,
           (double)wanted[t]);
  }
}

/* The lowest slot of equal kept keys gets it, wherever panels end. */
Test(moves_merge, equal_similarities_go_to_the_lowest_slot) {
  enum { kN = 80 };
  test_random random = test_random_start("merge ties");
  for (uint32_t i = 0; i < 280; ++i) {
    const uint32_t first = i % 70;
    float keys[kN], values[kN], wanted[kN];
    for (uint32_t t = 0; t < kN; ++t) {
      keys[t] = t < first ? -1.0f : 1.0f;
      values[t] = t == kN - 1 ? 4.0f : 1.0f;
      wanted[t] = t == first ? 1.75f : 1.0f;
    }
    test_cache* cache = MergeNumbers(&random, KVEVICT_DTYPE_F32, keys, values,
                                     kN, kN - 1, KVEVICT_MERGE_PIVOT);
    ExpectNumbers(cache, &cache->view.v, wanted, kN - 1);
    test_cache_destroy(cache);
  }
}

/* Keys of norm 0 are like any key, so the first slot that stays gets them. */
Test(moves_merge, keys_without_a_direction_go_to_the_first_slot) {
  static const float kKeys[] = {0, 5, 0, 3}, kValues[] = {1, 1, 1, 3};
  static const float kWantedKeys[] = {0, 4}, kWanted[] = {1, 2};
  test_random random = test_random_start("merge no direction");
  for (int i = 0; i < 24; ++i) {
    /* Slot 2 merges by half into slot 0, and slot 3 into slot 1. */
    test_cache* cache = MergeNumbers(&random, KVEVICT_DTYPE_F32, kKeys, kValues,
                                     4, 2, KVEVICT_MERGE_WEIGHTED);
    ExpectNumbers(cache, &cache->view.k, kWantedKeys, 2);
    ExpectNumbers(cache, &cache->view.v, kWanted, 2);
    test_cache_destroy(cache);
    cache = MergeNumbers(&random, KVEVICT_DTYPE_F32, kKeys, kValues, 4, 2,
                         KVEVICT_MERGE_VALUES);
    ExpectNumbers(cache, &cache->view.v, kValues, 1);
    test_cache_destroy(cache);
  }
}

/* A mean half way between two numbers of a dtype rounds to the even one. */
Test(moves_merge, halves_are_rounded_to_even) {
  static const float kKeys[] = {1, 1};
  test_random random = test_random_start("merge halves");
  for (int i = 0; i < 128; ++i) {
    const bool is_f16 = i % 2 == 0;
    const int at = i / 2 % 8;
    const float ulp = is_f16 ? 0x1p-10f : 0x1p-7f;
    /* The pivot's mean: three parts of the first, one of the second. */
    const float values[] = {1 + (float)at * ulp, 1 + (float)(at + 2) * ulp};
    const float even = at % 2 == 0 ? values[0] : values[0] + ulp;
    test_cache* cache =
        MergeNumbers(&random, is_f16 ? KVEVICT_DTYPE_F16 : KVEVICT_DTYPE_BF16,
                     kKeys, values, 2, 1, KVEVICT_MERGE_PIVOT);
    ExpectNumbers(cache, &cache->view.v, &even, 1);
    test_cache_destroy(cache);
  }
}

/* Each move of a call may merge by its own rule or not at all. */
Test(moves_merge, every_move_merges_as_it_says) {
  test_random random = {8};
  int32_t keep[12];
  test_random_ascending(&random, keep, 12, 40);
  const kvevict_keep_lists lists = test_lists(keep, 12, 1);
  test_cache* together[4];
  kvevict_move moves[4];
  for (int i = 0; i < 4; ++i) {
    const test_cache_spec spec = {
        TEST_HEAD_MAJOR,   2, 40, KVEVICT_DTYPE_F32, 8 + (uint32_t)i,
        KVEVICT_DTYPE_F32, 8, 0};
    together[i] = test_cache_create(&spec, &random);
    moves[i] = (kvevict_move)KVEVICT_MOVE_INIT;
    moves[i].n_tokens = 40;
    moves[i].view = &together[i]->view;
    moves[i].keep = &lists;
    moves[i].merge = (kvevict_merge)i;
  }
  test_cache* apart[4];
  for (int i = 0; i < 4; ++i) apart[i] = test_cache_clone(together[i]);
  EXPECT_OK(Compact(test_context(), moves, 4));
  for (int i = 0; i < 4; ++i) {
    moves[i].view = &apart[i]->view;
    if (i == 0) {
      EXPECT_OK(kvevict_compact(test_context(), &moves[i], 1, NULL, 0, NULL));
    } else {
      EXPECT_OK(Compact(test_context(), &moves[i], 1));
    }
    test_expect_same_rows(together[i], apart[i], 12, "together");
    test_cache_destroy(together[i]);
    test_cache_destroy(apart[i]);
  }
}
