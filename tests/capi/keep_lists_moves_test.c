/* kvevict_compact() and kvevict_reorder() of caches whose heads hold different
 * numbers of tokens. Block tables have no blocks that heads gave back. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

enum { kMaxHeads = 4, kCapacity = 70 };

static uint32_t Least(const uint32_t* counts, uint32_t n) {
  uint32_t least = counts[0];
  for (uint32_t i = 1; i < n; ++i) {
    if (counts[i] < least) least = counts[i];
  }
  return least;
}

/* Sets entries of blocks that hold nothing to -1. */
static void FreeBlocks(test_cache* c, const uint32_t* held, uint32_t most) {
  if (c->view.ring_slots != 0) return; /* a ring uses all its blocks */
  const uint64_t stride = c->view.block_table_head_stride;
  const uint32_t all = test_cache_blocks(c, c->spec.capacity);
  for (uint32_t h = 0; h < (stride == 0 ? 1 : c->spec.n_kv_heads); ++h) {
    const uint32_t used = test_cache_blocks(c, stride == 0 ? most : held[h]);
    for (uint32_t i = used; i < all; ++i) {
      test_cache_free_entry(c, h * stride + i);
    }
  }
}

/* A cache whose heads hold token_counts, and the lists of what stays. */
typedef struct ragged {
  test_cache *ours, *theirs, *before;
  uint32_t held[kMaxHeads], counts[kMaxHeads];
  int32_t slots[kMaxHeads * kCapacity];
  kvevict_keep_lists keep;
  kvevict_move move;
} ragged;

static ragged* Draw(test_layout layout, bool ascending, test_random* random) {
  ragged* r = calloc(1, sizeof *r);
  test_cache_spec spec = {
      layout, 1, kCapacity, KVEVICT_DTYPE_F32, 1, KVEVICT_DTYPE_F16, 0, 0};
  spec.n_kv_heads = test_random_between(random, 1, kMaxHeads);
  spec.k_head_dim = test_random_between(random, 1, 12);
  spec.v_head_dim = test_random_below(random, 12);
  spec.n_companions = test_random_below(random, 3);
  r->ours = test_cache_create(&spec, random);
  uint32_t most = 0;
  for (uint32_t h = 0; h < spec.n_kv_heads; ++h) {
    r->held[h] = test_random_below(random, kCapacity + 1);
    if (test_random_below(random, 6) == 0) r->held[h] = 0;
    if (r->held[h] > most) most = r->held[h];
  }
  FreeBlocks(r->ours, r->held, most);
  r->before = test_cache_clone(r->ours);
  r->theirs = test_cache_clone(r->ours);

  kvevict_keep_lists* k = &r->keep;
  *k = (kvevict_keep_lists)KVEVICT_KEEP_LISTS_INIT;
  k->n_lists = test_random_coin(random) ? 1 : spec.n_kv_heads;
  const uint32_t shortest = Least(r->held, spec.n_kv_heads);
  for (uint32_t i = 0; i < k->n_lists; ++i) {
    const uint32_t n = k->n_lists == 1 ? shortest : r->held[i];
    r->counts[i] = test_random_below(random, n + 1);
    int32_t* list = r->slots + (size_t)i * kCapacity;
    test_random_ascending(random, list, r->counts[i], n);
    for (uint32_t j = 0; !ascending && j < r->counts[i]; ++j) {
      list[j] = (int32_t)test_random_below(random, n);
    }
    if (r->counts[i] > k->count) k->count = r->counts[i];
  }
  k->slots = r->slots;
  k->slots_len = (size_t)k->n_lists * kCapacity;
  k->list_stride = kCapacity;
  k->counts = r->counts;
  r->move = (kvevict_move){.struct_size = sizeof r->move,
                           .n_tokens = most,
                           .view = &r->ours->view,
                           .keep = k,
                           .token_counts = r->held};
  oracle_compact_lists(&r->theirs->view, k);
  return r;
}

static void ExpectMoved(ragged* r) {
  const char* what = test_layout_name(r->ours->spec.layout);
  uint32_t kept[kMaxHeads];
  for (uint32_t h = 0; h < kMaxHeads; ++h) {
    kept[h] = r->counts[r->keep.n_lists == 1 ? 0 : h];
  }
  test_expect_same_rows_of_heads(r->ours, r->theirs, kept, what);
  test_expect_same_outside_heads(r->ours, r->before, r->held, what);
}

static void Destroy(ragged* r) {
  test_cache_destroy(r->ours);
  test_cache_destroy(r->theirs);
  test_cache_destroy(r->before);
  free(r);
}

/* Reorders in the least workspace. */
static void Reorder(const kvevict_move* moves, size_t n) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_reorder_workspace(test_context(), moves, n, &size));
  uint8_t* memory = aligned_alloc(64, (size.least_bytes + 127) / 64 * 64);
  memset(memory, TEST_GUARD, size.least_bytes + 64);
  EXPECT_OK(kvevict_reorder(test_context(), moves, n, memory, size.least_bytes,
                            NULL));
  EXPECT(test_is_filled(memory + size.least_bytes, 64),
         "wrote beyond a workspace of %zu bytes", size.least_bytes);
  free(memory);
}

static void TryAll(bool reorders, test_random* random) {
  for (int round = 0; round < 40; ++round) {
    for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
      ragged* r = Draw((test_layout)layout, !reorders, random);
      if (reorders) {
        Reorder(&r->move, 1);
      } else {
        kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
        EXPECT_OK(
            kvevict_compact_workspace(test_context(), &r->move, 1, &size));
        EXPECT(size.best_bytes == 0, "%zu bytes", size.best_bytes);
        EXPECT_OK(kvevict_compact(test_context(), &r->move, 1, NULL, 0, NULL));
      }
      ExpectMoved(r);
      Destroy(r);
    }
  }
}

Test(ragged_moves, compact_what_each_head_holds) {
  test_random random = test_random_start("ragged compact");
  TryAll(false, &random);
}

Test(ragged_moves, reorder_what_each_head_holds) {
  test_random random = test_random_start("ragged reorder");
  TryAll(true, &random);
}

Test(ragged_moves, of_layers_go_together) {
  test_random random = test_random_start("ragged layers");
  for (int round = 0; round < 60; ++round) {
    const bool reorders = round % 2 == 0;
    ragged* all[5];
    kvevict_move moves[5];
    for (int l = 0; l < 5; ++l) {
      const uint32_t layout = test_random_below(&random, TEST_N_LAYOUTS);
      all[l] = Draw((test_layout)layout, !reorders, &random);
      moves[l] = all[l]->move;
    }
    if (reorders) {
      Reorder(moves, 5);
    } else {
      EXPECT_OK(kvevict_compact(test_context(), moves, 5, NULL, 0, NULL));
    }
    for (int l = 0; l < 5; ++l) {
      ExpectMoved(all[l]);
      Destroy(all[l]);
    }
  }
}

/* A block that one cache's head gave back may be another cache's. A block that it
 * holds may not. */
Test(ragged_moves, of_caches_that_share_a_pool) {
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

/* ---- Errors ---- */

/* `change` to good moves of heads that hold 40 and 20 makes both calls fail. */
#define EXPECT_BREAKS(change, ...)                                           \
  do {                                                                       \
    test_random random = {6};                                                \
    const test_cache_spec spec = {                                           \
        TEST_PAGED_16_OF_HEADS, 2, 40, KVEVICT_DTYPE_F32, 4,                 \
        KVEVICT_DTYPE_F32,      4, 0};                                       \
    test_cache* cache = test_cache_create(&spec, &random);                   \
    uint32_t held[2] = {40, 20};                                             \
    int32_t slots[8] = {1, 3, 20, 39, 0, 2, 15, 19};                         \
    kvevict_keep_lists lists = test_lists(slots, 4, 2);                      \
    kvevict_move move = {.struct_size = sizeof move,                         \
                         .n_tokens = 40,                                     \
                         .view = &cache->view,                               \
                         .keep = &lists,                                     \
                         .token_counts = held};                              \
    int32_t* table = cache->block_table;                                     \
    const uint64_t stride = cache->view.block_table_head_stride;             \
    uint64_t room[512];                                                      \
    uint8_t* const workspace =                                               \
        (uint8_t*)room + (64 - (uintptr_t)room % 64) % 64;                   \
    FreeBlocks(cache, held, 40);                                             \
    change;                                                                  \
    test_cache* before = test_cache_clone(cache);                            \
    EXPECT_INVALID(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL), \
                   __VA_ARGS__);                                             \
    EXPECT_INVALID(                                                          \
        kvevict_reorder(test_context(), &move, 1, workspace, 4000, NULL),    \
        __VA_ARGS__);                                                        \
    test_expect_same_bytes(cache, before, #change);                          \
    (void)table, (void)stride;                                               \
    test_cache_destroy(cache);                                               \
    test_cache_destroy(before);                                              \
  } while (0)

Test(ragged_moves, that_are_bad_are_errors) {
  EXPECT_BREAKS(held[1] = 41, "token_counts[1] 41", "40");
  EXPECT_BREAKS(slots[7] = 20, "keep[1][3] 20", "20");
  EXPECT_BREAKS(held[1] = 19, "keep[1][3] 19", "19");
  /* A shared list has room for what the shortest head holds. */
  EXPECT_BREAKS((lists.n_lists = 1), "keep[0][2] 20", "20");
  /* Blocks that hold tokens must be there. */
  EXPECT_BREAKS(table[stride + 1] = -1, "block_table", "-1");
  EXPECT_BREAKS(held[1] = 33, "block_table", "-1");
  EXPECT_BREAKS(move.token_counts = NULL, "block_table", "-1");
  /* The move's n_tokens is what the longest head holds. */
  EXPECT_BREAKS(move.n_tokens = 39, "token_counts[0] 40", "39");
}

/* A list has no more places than its head holds: more might have no block. */
Test(ragged_moves, reorder_has_no_more_places_than_are_held) {
  test_random random = {6};
  const test_cache_spec spec = {
      TEST_PAGED_16_OF_HEADS, 2, 40, KVEVICT_DTYPE_F32, 4,
      KVEVICT_DTYPE_F32,      4, 0};
  test_cache* cache = test_cache_create(&spec, &random);
  const uint32_t held[2] = {40, 3};
  int32_t slots[2 * 20];
  uint64_t room[512];
  uint8_t* const workspace = (uint8_t*)room + (64 - (uintptr_t)room % 64) % 64;
  for (int i = 0; i < 2 * 20; ++i) slots[i] = i % 3;
  FreeBlocks(cache, held, 40);
  test_cache* before = test_cache_clone(cache);
  const kvevict_keep_lists lists = test_lists(slots, 20, 2);
  const kvevict_move move = {.struct_size = sizeof move,
                             .n_tokens = 40,
                             .view = &cache->view,
                             .keep = &lists,
                             .token_counts = held};
  EXPECT_INVALID(
      kvevict_reorder(test_context(), &move, 1, workspace, 4000, NULL), "20",
      "3");
  test_expect_same_bytes(cache, before, "refused");
  test_cache_destroy(cache);
  test_cache_destroy(before);
}
