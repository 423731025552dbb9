/* What the layers of one kvevict_compact() or kvevict_reorder() must not share, and how
 * many there may be. moves_test.c has random ones. */
#include <stdlib.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

static const test_cache_spec kSpec = {
    TEST_TOKEN_MAJOR, 3, 60, KVEVICT_DTYPE_F32, 5, KVEVICT_DTYPE_F16, 3, 1};

Test(keep_lists, as_many_layers_as_a_call_takes) {
  enum { kN = KVEVICT_MAX_JOBS };
  test_random random = {7};
  static kvevict_move moves[kN];
  static test_cache* caches[kN];
  static test_cache* expected[kN];
  int32_t slots[3 * 20];
  for (int h = 0; h < 3; ++h)
    test_random_ascending(&random, slots + 20 * h, 20, 60);
  const kvevict_keep_lists keep = test_lists(slots, 20, 3);
  for (int l = 0; l < kN; ++l) {
    caches[l] = test_cache_create(&kSpec, &random);
    expected[l] = test_cache_clone(caches[l]);
    moves[l] = (kvevict_move){.struct_size = sizeof moves[l],
                              .n_tokens = 60,
                              .view = &caches[l]->view,
                              .keep = &keep};
    oracle_compact_lists(&expected[l]->view, &keep);
  }
  EXPECT_OK(kvevict_compact(test_context(), moves, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_compact(test_context(), NULL, 0, NULL, 0, NULL));
  EXPECT_OK(kvevict_compact(test_context(), moves, kN, NULL, 0, NULL));
  for (int l = 0; l < kN; ++l) {
    test_expect_same_rows(caches[l], expected[l], 20, "128 layers");
    test_cache_destroy(caches[l]);
    test_cache_destroy(expected[l]);
  }
}

/* A caller of a later release has moves that lie further apart. */
Test(keep_lists, moves_are_as_far_apart_as_their_size_says) {
  test_random random = {8};
  struct {
    kvevict_move move;
    uint64_t later;
  } moves[2];
  memset(moves, 0, sizeof moves);
  const int32_t slots[2] = {4, 9};
  const kvevict_keep_lists keep = test_lists(slots, 2, 1);
  test_cache* caches[2];
  test_cache* expected[2];
  for (int l = 0; l < 2; ++l) {
    caches[l] = test_cache_create(&kSpec, &random);
    expected[l] = test_cache_clone(caches[l]);
    moves[l].move = (kvevict_move){.struct_size = sizeof moves[0],
                                   .n_tokens = 60,
                                   .view = &caches[l]->view,
                                   .keep = &keep};
    oracle_compact_lists(&expected[l]->view, &keep);
  }
  moves[1].later = 1;
  EXPECT_INVALID(
      kvevict_compact(test_context(), &moves[0].move, 2, NULL, 0, NULL),
      "moves[1]", "struct_size");
  moves[1].later = 0;
  moves[1].move.struct_size = sizeof moves[0].move;
  EXPECT_INVALID(
      kvevict_compact(test_context(), &moves[0].move, 2, NULL, 0, NULL),
      "moves[1].struct_size");
  moves[1].move.struct_size = sizeof moves[0];
  EXPECT_OK(kvevict_compact(test_context(), &moves[0].move, 2, NULL, 0, NULL));
  for (int l = 0; l < 2; ++l) {
    test_expect_same_rows(caches[l], expected[l], 2, "wider moves");
    test_cache_destroy(caches[l]);
    test_cache_destroy(expected[l]);
  }
}

/* ---- What layers of one call must not share ---- */

/* Both calls refuse the two moves, and no byte changes. */
static void ExpectRefused(const kvevict_move* moves, size_t n,
                          test_cache* const* caches, size_t n_caches,
                          const char* text, const char* text2) {
  test_cache* before[3];
  for (size_t i = 0; i < n_caches; ++i) before[i] = test_cache_clone(caches[i]);
  EXPECT_INVALID(kvevict_compact(test_context(), moves, n, NULL, 0, NULL), text,
                 text2);
  kvevict_workspace w = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_reorder_workspace(test_context(), moves, n, &w));
  const size_t bytes = w.least_bytes;
  void* workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
  EXPECT_INVALID(
      kvevict_reorder(test_context(), moves, n, workspace, bytes, NULL), text,
      text2);
  free(workspace);
  for (size_t i = 0; i < n_caches; ++i) {
    test_expect_same_bytes(caches[i], before[i], text);
    test_cache_destroy(before[i]);
  }
}

Test(keep_lists, layers_that_share_rows_are_refused) {
  test_random random = {9};
  const int32_t slots[4] = {1, 7, 20, 59};
  const kvevict_keep_lists keep = test_lists(slots, 4, 1);
  for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
    test_cache_spec spec = kSpec;
    spec.layout = (test_layout)layout;
    test_cache* caches[2] = {test_cache_create(&spec, &random),
                             test_cache_create(&spec, &random)};
    kvevict_view views[3] = {caches[0]->view, caches[1]->view, caches[0]->view};
    kvevict_move moves[3];
    for (int i = 0; i < 3; ++i) {
      moves[i] = (kvevict_move){.struct_size = sizeof moves[i],
                                .n_tokens = 60,
                                .view = &views[i],
                                .keep = &keep};
    }
    EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
    ExpectRefused(moves, 3, caches, 2, "moves[2].view", "moves[0]");
    /* One byte further it is another cache, which overlaps the first one. */
    views[2].k.data += 1;
    views[2].v.data += 1;
    views[2].companions = NULL;
    views[2].n_companions = 0;
    ExpectRefused(moves, 3, caches, 2, "overlap", "2");
    if (layout == TEST_TOKEN_MAJOR) { /* other rows, but the same companion */
      views[1].companions = caches[0]->companions;
      ExpectRefused(moves, 2, caches, 2, "moves[1].view", "companion");
    }
    test_cache_destroy(caches[0]);
    test_cache_destroy(caches[1]);
  }
}

/* A block that one cache's head gave back may be another cache's. A block that it
 * holds may not. */
Test(keep_lists, of_caches_that_share_a_pool) {
  test_random random = {5};
  const test_cache_spec spec = {
      TEST_PAGED_3_OF_HEADS, 2, 12, KVEVICT_DTYPE_F32, 4,
      KVEVICT_DTYPE_F32,     4, 0};
  test_cache* cache = test_cache_create(&spec, &random);
  test_cache* before = test_cache_clone(cache);
  kvevict_view views[2] = {cache->view, cache->view};
  const uint64_t stride = cache->view.block_table_head_stride;
  int32_t freed[2];
  for (int i = 0; i < 2; ++i) {
    freed[i] = cache->block_table[stride + 2 + i];
    cache->block_table[stride + 2 + i] = -1;
  }
  views[1].n_kv_heads = 1;
  views[1].block_table = freed;
  views[1].block_table_len = 2;
  views[1].block_table_head_stride = 0;
  const uint32_t held[2] = {12, 5}, held_there[1] = {6};
  int32_t slots[2] = {1, 4};
  const kvevict_keep_lists keep = test_lists(slots, 2, 1);
  const kvevict_move moves[2] = {{.struct_size = sizeof moves[0],
                                  .n_tokens = 12,
                                  .view = &views[0],
                                  .keep = &keep,
                                  .token_counts = held},
                                 {.struct_size = sizeof moves[0],
                                  .n_tokens = 6,
                                  .view = &views[1],
                                  .keep = &keep,
                                  .token_counts = held_there}};
  freed[0] = cache->block_table[stride + 1];
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "overlap");
  test_expect_same_bytes(cache, before, "refused");
  freed[0] = before->block_table[stride + 2];
  EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
  for (int i = 0; i < 2; ++i) {
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t row = (uint32_t)slots[i];
      for (uint32_t h = 0; h < 2; ++h) {
        cr_expect_eq(test_cache_get(cache, &cache->view.k, (uint32_t)i, h, e),
                     test_cache_get(before, &before->view.k, row, h, e));
      }
    }
  }
  test_cache_destroy(cache);
  test_cache_destroy(before);
}
