/* Moves of caches that share memory, of rows that share scales, and of as many layers as a
 * call takes. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/moves.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

static kvevict_move MoveOf(const kvevict_view* view, uint32_t n_tokens,
                           const kvevict_keep_lists* keep) {
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.n_tokens = n_tokens;
  move.view = view;
  move.keep = keep;
  return move;
}

/* Two sequences of one pool whose tables begin with the same n_shared blocks. */
typedef struct pool {
  test_cache* cache;
  int32_t tables[2][6];
  kvevict_view views[2];
  kvevict_keep_lists keep;
  kvevict_move moves[2];
} pool;

static int32_t kTail[2] = {34, 39};

static void MakePool(pool* p, uint32_t n_shared, test_random* random) {
  const test_cache_spec spec = {
      TEST_PAGED_16, 2, 12 * 16, KVEVICT_DTYPE_F32, 4, KVEVICT_DTYPE_F32, 4, 0};
  p->cache = test_cache_create(&spec, random);
  p->keep = test_lists(kTail, 2, 1);
  for (int s = 0; s < 2; ++s) {
    for (uint32_t i = 0; i < 6; ++i) {
      const uint32_t own = i < n_shared ? 0 : 6 * (uint32_t)s;
      p->tables[s][i] = p->cache->block_table[own + i];
    }
    p->views[s] = p->cache->view;
    p->views[s].block_table = p->tables[s];
    p->views[s].block_table_len = 6;
    p->moves[s] = MoveOf(&p->views[s], 40, &p->keep);
    p->moves[s].first_slot = 32;
  }
}

static float Element(const kvevict_view* view, uint32_t slot, uint32_t head) {
  float value;
  memcpy(&value, oracle_row_byte(view, &view->k, slot, head, 0), sizeof value);
  return value;
}

Test(moves_shared, sequences_that_share_a_prefix_compact_their_tails) {
  test_random random = {21};
  pool p;
  MakePool(&p, 2, &random);
  float wanted[2][2];
  for (int s = 0; s < 2; ++s) {
    for (uint32_t i = 0; i < 2; ++i) {
      wanted[s][i] = Element(&p.views[s], (uint32_t)kTail[i], 1);
    }
  }
  EXPECT_OK(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL));
  for (int s = 0; s < 2; ++s) {
    for (uint32_t i = 0; i < 2; ++i) {
      cr_assert(Element(&p.views[s], 32 + i, 1) == wanted[s][i]);
    }
  }
  test_cache_destroy(p.cache);
  /* Both would write a third block. */
  MakePool(&p, 3, &random);
  p.moves[1].n_tokens = 41;
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL),
                 "moves[0].k of 40 tokens", "moves[1].k of 41 tokens",
                 "overlap");
  /* Moving whole caches would write the shared blocks twice. */
  p.tables[1][2] = p.cache->block_table[8];
  EXPECT_OK(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL));
  p.moves[0].first_slot = p.moves[1].first_slot = 31;
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 2, NULL, 0, NULL),
                 "overlap");
  test_cache_destroy(p.cache);
}

Test(moves_shared, blocks_of_the_same_pool_are_a_destination) {
  test_random random = {22};
  pool p;
  MakePool(&p, 0, &random);
  const float wanted = Element(&p.views[0], 39, 0);
  p.moves[0].destination = &p.views[1];
  EXPECT_OK(kvevict_compact(test_context(), p.moves, 1, NULL, 0, NULL));
  cr_assert(Element(&p.views[1], 33, 0) == wanted);
  p.tables[1][2] = p.tables[0][1]; /* where rows are read */
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 1, NULL, 0, NULL),
                 "moves[0].k of 40 tokens",
                 "moves[0].destination.k of 34 tokens", "overlap");
  p.tables[1][2] = -1;
  EXPECT_INVALID(kvevict_compact(test_context(), p.moves, 1, NULL, 0, NULL),
                 "destination: block_table[2] -1 < 0");
  test_cache_destroy(p.cache);
}

/* ---- Layers of one call ---- */

static const test_cache_spec kSpec = {
    TEST_TOKEN_MAJOR, 3, 60, KVEVICT_DTYPE_F32, 5, KVEVICT_DTYPE_F16, 3, 1};

Test(moves_shared, layers_are_as_many_as_a_call_takes) {
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
    moves[l] = MoveOf(&caches[l]->view, 60, &keep);
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
Test(moves_shared, moves_are_as_far_apart_as_their_size_says) {
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

Test(moves_shared, layers_that_share_rows_are_refused) {
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
      moves[i] = MoveOf(&views[i], 60, &keep);
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
Test(moves_shared, caches_share_a_pool_whose_blocks_they_do_not) {
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
  kvevict_move moves[2] = {MoveOf(&views[0], 12, &keep),
                           MoveOf(&views[1], 6, &keep)};
  moves[0].token_counts = held;
  moves[1].token_counts = held_there;
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

/* ---- Rows of codes ---- */

/* Workers share the rows of a long layer in runs. */
Test(moves_shared, long_layers_are_requantized_in_runs) {
  enum { kTokens = 600 };
  test_random random = test_random_start("requantize long layers");
  for (int i = 0; i < 12; ++i) {
    const test_any_context with = test_draw_context(&random);
    test_cache_spec spec = {
        TEST_PAGED_16_BY_HEAD, 2,  kTokens, KVEVICT_DTYPE_F32, 64,
        KVEVICT_DTYPE_BF16,    64, 1};
    test_cache* from = test_cache_create(&spec, &random);
    spec.k_dtype = KVEVICT_DTYPE_U8;
    spec.v_dtype = i % 3 == 1 ? KVEVICT_DTYPE_BF16 : KVEVICT_DTYPE_U4;
    test_cache* to = test_cache_create(&spec, &random);
    test_cache* want = test_cache_clone(to);
    kvevict_move move = MoveOf(&from->view, kTokens - 7 * (uint32_t)i, NULL);
    move.destination = &to->view;
    EXPECT_OK(kvevict_compact(with.context, &move, 1, NULL, 0, NULL));
    for (uint32_t slot = 0; slot < move.n_tokens; ++slot) {
      for (uint32_t h = 0; h < 2; ++h) {
        test_move_row(&from->view, &from->view.k, slot, &want->view,
                      &want->view.k, slot, h, with.is_fused);
        test_move_row(&from->view, &from->view.v, slot, &want->view,
                      &want->view.v, slot, h, with.is_fused);
        for (uint32_t b = 0; b < 4; ++b) {
          *oracle_row_byte(&want->view, want->companions, slot, h, b) =
              *oracle_row_byte(&from->view, from->companions, slot, h, b);
        }
      }
    }
    test_expect_same_bytes(to, want, with.simd);
    test_cache_destroy(from);
    test_cache_destroy(to);
    test_cache_destroy(want);
  }
}

/* Scales that stay are read. Scales of another kind make rows of one dtype anew. */
Test(moves_shared, numbers_of_another_kind_make_rows_anew) {
  test_random random = test_random_start("requantize numbers");
  const test_cache_spec spec = {
      TEST_TOKEN_MAJOR,       2,  24, KVEVICT_DTYPE_FP8_E4M3, 64,
      KVEVICT_DTYPE_FP8_E4M3, 64, 0};
  for (int trial = 0; trial < 3; ++trial) {
    test_cache* from = test_cache_create(&spec, &random);
    test_cache* to = test_cache_create(&spec, &random);
    static float scales[2] = {0x1p-6f, 0x1p-5f};
    /* K has a scale for each head. V has one for each row, or none. */
    to->companions[0].data = (uintptr_t)scales;
    to->companions[0].dtype = KVEVICT_DTYPE_F32;
    to->companions[0].head_stride_bytes = sizeof(float);
    to->companions[0].token_stride_bytes = 0;
    if (trial > 0) to->view.n_companions = 1;
    if (trial > 1) { /* equal scales: bytes are copied */
      from->companions[0] = to->companions[0];
    }
    test_cache* want = test_cache_clone(to);
    want->companions[0] = to->companions[0];
    want->view.n_companions = to->view.n_companions;
    kvevict_move move = MoveOf(&from->view, 24, NULL);
    move.destination = &to->view;
    EXPECT_OK(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL));
    for (uint32_t h = 0; h < 2; ++h) {
      for (uint32_t t = 0; t < 24; ++t) {
        test_store_anew(&from->view, &from->view.k, t, &want->view,
                        &want->view.k, t, h, true);
        if (trial > 0) {
          test_store_anew(&from->view, &from->view.v, t, &want->view,
                          &want->view.v, t, h, true);
        } else {
          test_move_row(&from->view, &from->view.v, t, &want->view,
                        &want->view.v, t, h, true);
        }
      }
    }
    if (trial == 2) { /* what fp8 stores is stored as the same fp8 */
      for (uint32_t i = 0; i < 2 * 24; ++i) {
        EXPECT(
            memcmp(oracle_row_byte(&to->view, &to->view.k, i / 2, i % 2, 0),
                   oracle_row_byte(&from->view, &from->view.k, i / 2, i % 2, 0),
                   64) == 0,
            "row %u was made anew", i);
      }
    }
    test_expect_same_bytes(to, want, "numbers");
    test_cache_destroy(from);
    test_cache_destroy(to);
    test_cache_destroy(want);
  }
}

/* A scale of all tokens stays in place wherever rows go. Layers may share it. */
Test(moves_shared, numbers_of_all_tokens_stay) {
  test_random random = test_random_start("dtypes stay");
  kvevict_context* const context = test_context();
  float scale = 0.5f;
  const test_cache_spec spec = {
      TEST_TOKEN_MAJOR,  2, 53, KVEVICT_DTYPE_FP8_E4M3, 16,
      KVEVICT_DTYPE_F32, 0, 0};
  test_cache* caches[2];
  kvevict_move moves[2];
  int32_t keep[10];
  test_random_ascending(&random, keep, 10, 53);
  const kvevict_keep_lists lists = test_lists(keep, 10, 1);
  for (int i = 0; i < 2; ++i) {
    caches[i] = test_cache_create(&spec, &random);
    kvevict_plane* plane = &caches[i]->companions[0];
    EXPECT(plane->role == KVEVICT_ROLE_KEY_SCALE, "role %d", plane->role);
    plane->data = (uint64_t)(uintptr_t)&scale;
    plane->token_stride_bytes = plane->head_stride_bytes = 0;
    moves[i] = MoveOf(&caches[i]->view, 53, &lists);
  }
  test_cache* want = test_cache_clone(caches[1]);
  want->companions[0].data = caches[1]->companions[0].data;
  oracle_compact(&want->view, keep, 10, 1);
  EXPECT_OK(kvevict_compact(context, moves, 2, NULL, 0, NULL));
  test_expect_same_rows(caches[1], want, 10, "shared scale");
  EXPECT(scale == 0.5f, "the scale is %g", scale);
  test_cache_destroy(want);
  for (int i = 0; i < 2; ++i) test_cache_destroy(caches[i]);
}
