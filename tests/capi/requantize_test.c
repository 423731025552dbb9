/* kvevict_compact() into another dtype: every pair of dtypes, layouts and kinds of
 * lists, against the oracle byte by byte. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/hooks.h"
#include "tests/capi/support/moves.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"
#include "tests/oracle/quantize.h"
#include "tests/oracle/quantized.h"

enum { kMaxHeads = 3, kCapacity = 24, kMostFirst = 9, kDim = 64 };

/* ---- The expected rows ---- */

static const kvevict_plane* FindRole(const kvevict_view* view, int role) {
  for (uint32_t i = 0; i < view->n_companions; ++i) {
    if ((int)view->companions[i].role == role) return &view->companions[i];
  }
  return NULL;
}

static void CopyBytes(const kvevict_view* from, const kvevict_plane* plane,
                      uint32_t slot, const kvevict_view* to,
                      const kvevict_plane* to_plane, uint32_t to_slot,
                      uint32_t head) {
  for (uint32_t b = 0; b < oracle_row_bytes(plane); ++b) {
    *oracle_row_byte(to, to_plane, to_slot, head, b) =
        *oracle_row_byte(from, plane, slot, head, b);
  }
}

/* Moves a row of K or V with its scales and minima. */
static void MoveRow(const kvevict_view* from, const kvevict_plane* plane,
                    uint32_t slot, const kvevict_view* to,
                    const kvevict_plane* to_plane, uint32_t to_slot,
                    uint32_t head) {
  float row[kDim];
  if (plane->head_dim == 0) return;
  if (plane->dtype == to_plane->dtype) {
    CopyBytes(from, plane, slot, to, to_plane, to_slot, head);
    const int first = plane == &from->k ? 1 : 3;
    for (int role = first; role < first + 2; ++role) {
      const kvevict_plane* of = FindRole(from, role);
      if (of == NULL) continue;
      CopyBytes(from, of, slot, to, FindRole(to, role), to_slot, head);
    }
    return;
  }
  for (uint32_t e = 0; e < plane->head_dim; ++e) {
    row[e] = (float)oracle_element(from, plane, slot, head, e);
  }
  oracle_store_row(to, to_plane, to_slot, head, row);
}

/* ---- Random moves ---- */

typedef struct trial {
  test_cache *from, *before, *to, *theirs;
  uint32_t held[kMaxHeads], counts[kMaxHeads];
  int32_t slots[kMaxHeads * kCapacity];
  kvevict_keep_lists keep;
  kvevict_move move;
} trial;

static void Expect(const trial* t) {
  const kvevict_view* from = &t->before->view;
  const kvevict_view* to = &t->theirs->view;
  for (uint32_t h = 0; h < from->n_kv_heads; ++h) {
    const uint32_t l = t->keep.n_lists == 1 ? 0 : h;
    const bool all = t->move.keep == NULL;
    const uint32_t n = all ? t->held[h] : t->counts[l];
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t slot = all ? i : (uint32_t)t->slots[l * kCapacity + i];
      const uint32_t to_slot = t->move.first_slot + i;
      MoveRow(from, &from->k, slot, to, &to->k, to_slot, h);
      MoveRow(from, &from->v, slot, to, &to->v, to_slot, h);
      for (uint32_t c = 0; c < t->from->spec.n_companions; ++c) {
        CopyBytes(from, &from->companions[c], slot, to, &to->companions[c],
                  to_slot, h);
      }
    }
  }
  test_expect_same_bytes(t->from, t->before, "source");
  test_expect_same_bytes(t->to, t->theirs, "destination");
}

static trial* Draw(test_cache_spec spec, test_cache_spec to,
                   test_random* random) {
  trial* t = calloc(1, sizeof *t);
  spec.capacity = kCapacity;
  to.capacity = kMostFirst + kCapacity;
  t->from = test_cache_create(&spec, random);
  t->before = test_cache_clone(t->from);
  t->to = test_cache_create(&to, random);
  t->theirs = test_cache_clone(t->to);
  t->move = (kvevict_move)KVEVICT_MOVE_INIT;
  test_draw_held(random, spec.n_kv_heads, kCapacity, t->held, &t->move);
  t->move.first_slot = test_random_below(random, kMostFirst + 1);
  t->move.view = &t->from->view;
  t->move.destination = &t->to->view;
  if (test_random_coin(random)) {
    test_draw_lists(random, spec.n_kv_heads, 0, t->held, kCapacity, t->counts,
                    t->slots, &t->keep);
    t->move.keep = &t->keep;
  }
  return t;
}

static void Destroy(trial* t) {
  test_cache_destroy(t->from);
  test_cache_destroy(t->before);
  test_cache_destroy(t->to);
  test_cache_destroy(t->theirs);
  free(t);
}

static test_cache_spec SpecOf(test_layout layout, uint32_t n_heads,
                              kvevict_dtype k, kvevict_dtype v, uint32_t v_dim,
                              uint32_t n_companions) {
  return (test_cache_spec){layout, n_heads, kCapacity, k,
                           kDim,   v,       v_dim,     n_companions};
}

static void Try(test_layout from, test_layout to, kvevict_dtype k,
                kvevict_dtype to_k, test_random* random) {
  const uint32_t n_heads = test_random_between(random, 1, kMaxHeads);
  const uint32_t v_dim = 32 * test_random_below(random, 3);
  const uint32_t n_companions = test_random_below(random, 3);
  const kvevict_dtype v = test_random_between(random, 1, test_last_dtype());
  const kvevict_dtype to_v = test_random_between(random, 1, test_last_dtype());
  trial* t = Draw(SpecOf(from, n_heads, k, v, v_dim, n_companions),
                  SpecOf(to, n_heads, to_k, to_v, v_dim, n_companions), random);
  EXPECT_OK(kvevict_compact(test_context(), &t->move, 1, NULL, 0, NULL));
  Expect(t);
  Destroy(t);
}

Test(requantize, every_dtype_becomes_every_other) {
  test_random random = test_random_start("requantize dtypes");
  for (kvevict_dtype k = KVEVICT_DTYPE_F32; k <= test_last_dtype(); ++k) {
    for (kvevict_dtype to = KVEVICT_DTYPE_F32; to <= test_last_dtype(); ++to) {
      for (int i = 0; i < 4; ++i) {
        Try((test_layout)test_random_below(&random, TEST_N_LAYOUTS),
            (test_layout)test_random_below(&random, TEST_N_LAYOUTS), k, to,
            &random);
      }
    }
  }
}

Test(requantize, every_layout_becomes_every_other) {
  test_random random = test_random_start("requantize layouts");
  for (int from = 0; from < TEST_N_LAYOUTS; ++from) {
    for (int to = 0; to < TEST_N_LAYOUTS; ++to) {
      Try((test_layout)from, (test_layout)to,
          test_random_between(&random, 1, test_last_dtype()),
          test_random_between(&random, 1, test_last_dtype()), &random);
    }
  }
}

/* Several layers on threads: workers share a layer's rows in runs. */
Test(requantize, layers_in_one_call_make_the_bytes_of_single_ones) {
  enum { kLayers = 3, kTokens = 600 };
  test_random random = test_random_start("requantize layers");
  test_runner runner;
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  test_runner_install(&runner, 5, &options);
  kvevict_context* threads = NULL;
  EXPECT_OK(kvevict_context_create(&options, &threads));
  test_cache *from[kLayers], *to[kLayers], *alone[kLayers];
  kvevict_move moves[kLayers];
  for (int l = 0; l < kLayers; ++l) {
    test_cache_spec spec = {
        TEST_PAGED_16_BY_HEAD, 2,    kTokens, KVEVICT_DTYPE_F32, kDim,
        KVEVICT_DTYPE_BF16,    kDim, 1};
    from[l] = test_cache_create(&spec, &random);
    spec.k_dtype = KVEVICT_DTYPE_U8;
    spec.v_dtype = l == 1 ? KVEVICT_DTYPE_BF16 : KVEVICT_DTYPE_U4;
    to[l] = test_cache_create(&spec, &random);
    alone[l] = test_cache_clone(to[l]);
    moves[l] = (kvevict_move)KVEVICT_MOVE_INIT;
    moves[l].n_tokens = kTokens - 7 * (uint32_t)l;
    moves[l].view = &from[l]->view;
    moves[l].destination = &alone[l]->view;
    EXPECT_OK(kvevict_compact(test_context(), &moves[l], 1, NULL, 0, NULL));
    moves[l].destination = &to[l]->view;
  }
  EXPECT_OK(kvevict_compact(threads, moves, kLayers, NULL, 0, NULL));
  for (int l = 0; l < kLayers; ++l) {
    test_expect_same_bytes(to[l], alone[l], "layers");
    test_cache_destroy(from[l]);
    test_cache_destroy(to[l]);
    test_cache_destroy(alone[l]);
  }
  kvevict_context_destroy(threads);
}

/* Appending chunks one behind the other gives what appending all at once does. */
Test(requantize, chunks_are_appended_with_first_slot) {
  enum { kTokens = 50 };
  test_random random = test_random_start("requantize append");
  test_cache_spec spec = {
      TEST_TOKEN_MAJOR,  2,    kTokens, KVEVICT_DTYPE_F32, kDim,
      KVEVICT_DTYPE_F32, kDim, 0};
  test_cache* from = test_cache_create(&spec, &random);
  spec.k_dtype = KVEVICT_DTYPE_U4_HALVES;
  spec.v_dtype = KVEVICT_DTYPE_Q8_0;
  spec.layout = TEST_PAGED_3;
  test_cache* to = test_cache_create(&spec, &random);
  test_cache* at_once = test_cache_clone(to);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.view = &from->view;
  move.destination = &at_once->view;
  move.n_tokens = kTokens;
  EXPECT_OK(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL));
  kvevict_view chunk = from->view;
  move.view = &chunk;
  move.destination = &to->view;
  for (uint32_t n = 0; n < kTokens; n += move.n_tokens) {
    move.n_tokens = test_random_between(&random, 1, kTokens - n);
    move.first_slot = n;
    chunk.k.data =
        from->view.k.data + (uint64_t)((int64_t)n * chunk.k.token_stride_bytes);
    chunk.v.data =
        from->view.v.data + (uint64_t)((int64_t)n * chunk.v.token_stride_bytes);
    EXPECT_OK(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL));
  }
  test_expect_same_bytes(to, at_once, "chunks");
  test_cache_destroy(from);
  test_cache_destroy(to);
  test_cache_destroy(at_once);
}

/* Scales that stay are read. Scales of another dtype make the rows anew. */
Test(requantize, numbers_of_another_kind_make_rows_anew) {
  test_random random = test_random_start("requantize numbers");
  const test_cache_spec spec =
      SpecOf(TEST_TOKEN_MAJOR, 2, KVEVICT_DTYPE_FP8_E4M3,
             KVEVICT_DTYPE_FP8_E4M3, kDim, 0);
  for (int trial = 0; trial < 3; ++trial) {
    test_cache* from = test_cache_create(&spec, &random);
    test_cache* to = test_cache_create(&spec, &random);
    static float scales[2] = {0x1p-6f, 0x1p-5f};
    /* K has a scale for each head, V has none. */
    to->companions[0].data = (uintptr_t)scales;
    to->companions[0].dtype = KVEVICT_DTYPE_F32;
    to->companions[0].head_stride_bytes = sizeof(float);
    to->companions[0].token_stride_bytes = 0;
    if (trial > 0) to->view.n_companions = 1;
    if (trial > 1) { /* equal scales: bytes are copied */
      from->companions[0] = to->companions[0];
    }
    test_cache* theirs = test_cache_clone(to);
    theirs->companions[0] = to->companions[0];
    theirs->view.n_companions = to->view.n_companions;
    kvevict_move move = KVEVICT_MOVE_INIT;
    move.view = &from->view;
    move.destination = &to->view;
    move.n_tokens = kCapacity;
    EXPECT_OK(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL));
    const kvevict_view* view = &from->view;
    for (uint32_t h = 0; h < 2; ++h) {
      for (uint32_t t = 0; t < kCapacity; ++t) {
        float row[kDim];
        for (uint32_t e = 0; e < kDim; ++e) {
          row[e] = (float)oracle_element(view, &view->k, t, h, e);
        }
        if (trial < 2) {
          oracle_store_row(&theirs->view, &theirs->view.k, t, h, row);
        } else {
          CopyBytes(view, &view->k, t, &theirs->view, &theirs->view.k, t, h);
        }
        if (trial == 0) { /* equal dtypes: bytes are copied */
          CopyBytes(view, &view->v, t, &theirs->view, &theirs->view.v, t, h);
          CopyBytes(view, &view->companions[1], t, &theirs->view,
                    &theirs->companions[1], t, h);
          continue;
        }
        for (uint32_t e = 0; e < kDim; ++e) {
          row[e] = (float)oracle_element(view, &view->v, t, h, e);
        }
        oracle_store_row(&theirs->view, &theirs->view.v, t, h, row);
      }
    }
    test_expect_same_bytes(to, theirs, "numbers");
    test_cache_destroy(from);
    test_cache_destroy(to);
    test_cache_destroy(theirs);
  }
}

/* ---- Errors ---- */

/* `change` to a valid call makes it fail; no byte moves. */
#define EXPECT_BREAKS(from_dtype, to_dtype, change, code, ...)             \
  do {                                                                     \
    test_random random = {6};                                              \
    test_cache_spec spec =                                                 \
        SpecOf(TEST_TOKEN_MAJOR, 2, from_dtype, from_dtype, kDim, 1);      \
    test_cache* from = test_cache_create(&spec, &random);                  \
    spec.k_dtype = spec.v_dtype = to_dtype;                                \
    test_cache* to = test_cache_create(&spec, &random);                    \
    test_cache* before = test_cache_clone(to);                             \
    int32_t slots[2] = {3, 9};                                             \
    kvevict_keep_lists keep = test_lists(slots, 2, 1);                     \
    kvevict_move move = KVEVICT_MOVE_INIT;                                 \
    move.view = &from->view;                                               \
    move.destination = &to->view;                                          \
    move.n_tokens = 20;                                                    \
    move.keep = &keep;                                                     \
    EXPECT_OK(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL));   \
    memcpy(to->memory, before->memory, before->n_bytes);                   \
    change;                                                                \
    EXPECT_FAILS(kvevict_compact(test_context(), &move, 1, NULL, 0, NULL), \
                 code, __VA_ARGS__);                                       \
    test_expect_same_bytes(to, before, #change);                           \
    test_cache_destroy(from);                                              \
    test_cache_destroy(to);                                                \
    test_cache_destroy(before);                                            \
  } while (0)

#define INVALID KVEVICT_ERROR_INVALID_ARGUMENT
#define F32 KVEVICT_DTYPE_F32
#define U8 KVEVICT_DTYPE_U8

/* Companions: a plane of the test's, then scales of K and V, then minima. */
Test(requantize, what_cannot_be_is_an_error) {
  EXPECT_BREAKS(F32, U8, to->view.n_companions = 4, INVALID, "destination",
                "value_minimum", "v.dtype u8", "below 0");
  EXPECT_BREAKS(F32, U8, to->companions[3].role = KVEVICT_ROLE_NONE, INVALID,
                "destination", "key_minimum", "k.dtype u8", "below 0");
  EXPECT_BREAKS(
      F32, U8,
      (to->companions[1] = to->companions[0], to->view.n_companions = 1),
      INVALID, "destination", "none has role key_scale", "k.dtype u8");
  EXPECT_BREAKS(U8, F32, (from->companions[2].role = KVEVICT_ROLE_NONE),
                INVALID, "n_companions 1", "are not the view's 2");
  EXPECT_BREAKS(U8, F32, from->view.n_companions = 1, INVALID,
                "view:", "none has role key_scale", "k.dtype u8");
  EXPECT_BREAKS(F32, U8, to->companions[1].token_stride_bytes = 0, INVALID,
                "destination", "the scale and the minimum of k");
  EXPECT_BREAKS(F32, U8, (to->view.k.head_dim = 32), INVALID, "destination",
                "k.head_dim 32", "64");
  EXPECT_BREAKS(
      F32, U8,
      (to->view.k.dtype = KVEVICT_DTYPE_OPAQUE, to->view.k.head_dim = 0,
       to->view.k.row_bytes = kDim, to->companions[1] = to->companions[2],
       to->companions[2] = to->companions[4], to->view.n_companions = 3),
      KVEVICT_ERROR_UNSUPPORTED, "destination", "k.dtype opaque", "f32");
  EXPECT_BREAKS(F32, U8, to->view.n_kv_heads = 1, INVALID, "n_kv_heads 1", "2");
  EXPECT_BREAKS(F32, U8, (move.keep = NULL, move.destination = NULL), INVALID,
                "keep", "NULL");
  EXPECT_BREAKS(F32, U8, (move.keep = NULL, move.n_tokens = UINT32_MAX),
                INVALID, "n_tokens 4294967295");
  EXPECT_BREAKS(F32, U8, move.merge = KVEVICT_MERGE_PIVOT, INVALID, "merge",
                "destination");
  EXPECT_BREAKS(F32, U8, to->companions[1].data = from->view.k.data, INVALID,
                "overlap");
}
