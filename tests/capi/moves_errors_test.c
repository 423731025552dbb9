/* kvevict_compact(), kvevict_reorder() and their queries refuse these moves; no byte
 * moves. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"

typedef enum doors {
  kCompact = 1, /* in place */
  kReorder = 2,
  kBoth = 3,
  kTail = 4, /* the slots from 10 on, in place */
  kTo = 8,   /* to slot 10 of another cache */
  kAll = 15
} doors;

/* Two heads of 40 tokens, in blocks of 16 here and in token order there. Both caches
 * have two companions of their own before scales and minima. Another move comes first,
 * and never happens. */
typedef struct scene {
  test_cache *from, *to, *from_before, *to_before, *first, *first_before;
  int32_t first_slots[2];
  kvevict_keep_lists first_lists;
  kvevict_view view, other;
  int32_t slots[8];
  uint32_t counts[2], held[2];
  kvevict_keep_lists lists, *keep;
  kvevict_move move, both[2], *moves;
  const kvevict_context* with;
  const kvevict_view* at;
  size_t moves_len, bytes;
  uint8_t *memory, *workspace;
  int32_t* second; /* the second head's blocks */
} scene;

static scene s;

/* Tables of heads: the second one holds 20 tokens in two blocks. */
static bool is_ragged;

static void SetMove(void) {
  s.move.view = s.at;
  s.move.keep = s.keep;
  s.both[1] = s.move;
}

static void Begin(doors door, kvevict_dtype from, kvevict_dtype to) {
  test_random random = {6};
  test_cache_spec spec = {TEST_PAGED_16, 2, 40, from, 64, from, 64, 2};
  memset(&s, 0, sizeof s);
  if (is_ragged) spec.layout = TEST_PAGED_16_OF_HEADS;
  s.from = test_cache_create(&spec, &random);
  s.second = s.from->block_table + s.from->view.block_table_head_stride;
  if (is_ragged) s.second[2] = -1;
  spec.layout = TEST_TOKEN_MAJOR;
  spec.k_dtype = spec.v_dtype = to;
  s.to = test_cache_create(&spec, &random);
  s.from_before = test_cache_clone(s.from);
  s.to_before = test_cache_clone(s.to);
  s.view = s.from->view;
  s.other = s.to->view;
  static const int32_t kSlots[8] = {11, 13, 20, 39, 10, 12, 25, 38};
  memcpy(s.slots, kSlots, sizeof kSlots);
  s.counts[0] = s.counts[1] = 4;
  s.lists = test_lists(s.slots, 4, 2);
  s.keep = &s.lists;
  s.move = (kvevict_move)KVEVICT_MOVE_INIT;
  s.move.n_tokens = 40;
  if (door >= kTail) s.move.first_slot = 10;
  s.held[0] = 40, s.held[1] = 20;
  if (is_ragged) {
    s.slots[6] = 15, s.slots[7] = 19;
    s.move.token_counts = s.held;
  }
  if (door == kTo) s.move.destination = &s.other;
  const test_cache_spec first = {TEST_HEAD_MAJOR,   1, 9, KVEVICT_DTYPE_F32, 4,
                                 KVEVICT_DTYPE_F32, 4, 0};
  s.first = test_cache_create(&first, &random);
  s.first_before = test_cache_clone(s.first);
  s.first_slots[0] = 3, s.first_slots[1] = 8;
  s.first_lists = test_lists(s.first_slots, 2, 1);
  s.both[0] = (kvevict_move)KVEVICT_MOVE_INIT;
  s.both[0].n_tokens = 9;
  s.both[0].view = &s.first->view;
  s.both[0].keep = &s.first_lists;
  s.moves = s.both;
  s.moves_len = 2;
  s.with = test_context();
  s.at = &s.view;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  SetMove();
  EXPECT_OK((door == kReorder
                 ? kvevict_reorder_workspace
                 : kvevict_compact_workspace)(s.with, s.moves, 2, &size));
  s.bytes = size.least_bytes;
  s.memory = s.workspace = aligned_alloc(64, (1 << 17) + 64);
}

static kvevict_status Call(doors door) {
  SetMove();
  return (door == kReorder ? kvevict_reorder : kvevict_compact)(
      s.with, s.moves, s.moves_len, s.workspace, s.bytes, NULL);
}

static void End(const char* what) {
  test_expect_same_bytes(s.from, s.from_before, what);
  test_expect_same_bytes(s.to, s.to_before, what);
  test_expect_same_bytes(s.first, s.first_before, what);
  test_cache_destroy(s.first);
  test_cache_destroy(s.first_before);
  test_cache_destroy(s.from);
  test_cache_destroy(s.to);
  test_cache_destroy(s.from_before);
  test_cache_destroy(s.to_before);
  free(s.memory);
}

/* `change` to a valid move makes it fail at these doors. */
#define EXPECT_BREAKS_OF(from, to, doors, change, code, ...) \
  for (int door = kCompact; door <= kTo; door *= 2) {        \
    if (((doors)&door) == 0) continue;                       \
    Begin(door, from, to);                                   \
    change;                                                  \
    EXPECT_FAILS(Call(door), code, __VA_ARGS__);             \
    End(#change);                                            \
  }
#define EXPECT_BREAKS(doors, change, ...)                               \
  EXPECT_BREAKS_OF(KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32, doors, change, \
                   KVEVICT_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

Test(moves_errors, null_pointers) {
  EXPECT_BREAKS(kAll, s.with = NULL, "context", "NULL");
  EXPECT_BREAKS(kAll, s.moves = NULL, "moves", "NULL");
  EXPECT_BREAKS(kAll, s.at = NULL, "view", "NULL");
  EXPECT_BREAKS(kAll - kTo, s.keep = NULL, "keep", "NULL");
  EXPECT_BREAKS(kAll, s.lists.slots = NULL, "keep.slots", "NULL", "4");
}

Test(moves_errors, wrong_lengths) {
  EXPECT_BREAKS(kAll, s.move.struct_size = 8, "struct_size", "8");
  EXPECT_BREAKS(kAll, s.lists.struct_size = 8, "struct_size", "8");
  EXPECT_BREAKS(kAll, s.lists.reserved = 8, "keep.reserved 8");
  EXPECT_BREAKS(kAll, s.lists.n_lists = 0, "n_lists 0");
  EXPECT_BREAKS(kAll, s.lists.n_lists = 3, "n_lists 3", "n_kv_heads 2");
  EXPECT_BREAKS(kAll, s.lists.slots_len = 7, "slots_len 7", "8");
  EXPECT_BREAKS(kAll, s.lists.list_stride = 3, "list_stride 3", "count 4");
  EXPECT_BREAKS(kAll, s.lists.list_stride = 5, "slots_len 8", "9");
  EXPECT_BREAKS(kAll, s.lists.list_stride = UINT64_MAX / 2, "slots_len 8");
  EXPECT_BREAKS(kAll,
                (s.lists.list_stride = UINT64_C(1) << 32,
                 s.lists.slots_len = SIZE_MAX / 8),
                "moves[1]", "keep.list_stride 4294967296 > 4294967295");
  EXPECT_BREAKS(kBoth, s.move.n_tokens = 3, "count 4", "n_tokens 3");
  EXPECT_BREAKS(kAll, s.move.n_tokens = 1u << 31, "n_tokens", "2147483648");
  EXPECT_BREAKS(kAll, s.move.n_tokens = 49, "block_table_len", "49");
  EXPECT_BREAKS(kTo, (s.keep = NULL, s.move.n_tokens = UINT32_MAX),
                "n_tokens 4294967295");
  EXPECT_BREAKS(kAll, s.moves_len = 129, "moves_len 129", "128");
  EXPECT_BREAKS(kAll, (s.lists.counts = s.counts, s.counts[1] = 5),
                "keep.counts[1] 5", "4");
}

Test(moves_errors, slots_that_are_not_there) {
  EXPECT_BREAKS(kAll, s.slots[0] = -1, "moves[1]", "keep[0][0] -1");
  EXPECT_BREAKS(kAll, s.slots[3] = 40, "keep[0][3] 40", "40");
  EXPECT_BREAKS(kAll, s.slots[7] = 40, "keep[1][3] 40", "40");
  EXPECT_BREAKS(kAll, s.slots[3] = INT32_MAX, "keep[0][3] 2147483647");
  EXPECT_BREAKS(kAll, s.move.n_tokens = 39, "keep[0][3] 39", "39");
}

Test(moves_errors, compaction_of_lists_that_do_not_ascend) {
  EXPECT_BREAKS(kAll - kReorder, s.slots[0] = 14, "keep[0][1] 13");
  EXPECT_BREAKS(kAll - kReorder, s.slots[1] = 11, "keep[0][1] 11");
  EXPECT_BREAKS(kAll - kReorder, s.slots[6] = 12, "keep[1][2] 12");
}

Test(moves_errors, heads_that_hold_other_numbers) {
  is_ragged = true;
  EXPECT_BREAKS(kBoth, s.held[1] = 41, "token_counts[1] 41", "40");
  EXPECT_BREAKS(kBoth, s.slots[7] = 20, "keep[1][3] 20", "20");
  EXPECT_BREAKS(kBoth, s.held[1] = 19, "keep[1][3] 19", "19");
  /* A shared list has room for what the shortest head holds. */
  EXPECT_BREAKS(kBoth, s.lists.n_lists = 1, "keep[0][2] 20", "20");
  /* Blocks that hold tokens must be there. */
  EXPECT_BREAKS(kBoth, s.second[1] = -1, "block_table", "-1");
  EXPECT_BREAKS(kBoth, s.held[1] = 33, "block_table", "-1");
  EXPECT_BREAKS(kBoth, s.move.token_counts = NULL, "block_table", "-1");
  /* The move's n_tokens is what the longest head holds. */
  EXPECT_BREAKS(kBoth, s.move.n_tokens = 39, "token_counts[0] 40", "39");
  /* A list has no more places than its head holds: more might have no block. */
  EXPECT_BREAKS(
      kReorder,
      (s.held[1] = 3, s.slots[5] = s.slots[6] = s.slots[7] = s.slots[4] = 1),
      "count 4", "3");
}

Test(moves_errors, views) {
  EXPECT_BREAKS(kAll, s.view.struct_size = 8, "struct_size", "8");
  EXPECT_BREAKS(kAll, s.view.k.dtype = 77, "k.dtype", "77");
  EXPECT_BREAKS(kAll, s.view.v.token_stride_bytes = 3, "v", "overlap");
  EXPECT_BREAKS(kAll, s.view.block_table_len = 1, "block_table_len", "1");
}

/* An aligned address in the first used block of a paged view's plane. */
static uint8_t* OnRows(const kvevict_plane* plane) {
  const int64_t block = s.view.block_table[0] * plane->block_stride_bytes;
  return (uint8_t*)(uintptr_t)((plane->data + (uint64_t)block + 64) / 64 * 64);
}

Test(moves_errors, workspaces) {
  EXPECT_BREAKS(kReorder, s.workspace = OnRows(&s.view.k), "workspace 0x",
                "overlaps moves[1]");
  EXPECT_BREAKS(kReorder, s.workspace = OnRows(&s.view.v), "workspace 0x",
                "overlaps moves[1]");
  EXPECT_BREAKS(kReorder, s.workspace = NULL, "workspace is NULL");
  EXPECT_BREAKS(kReorder, s.workspace += 32, "aligned", "64");
  EXPECT_BREAKS(kReorder, s.bytes -= 1, "workspace_bytes");
  EXPECT_BREAKS(kReorder, (s.bytes = 0, s.workspace = NULL),
                "workspace_bytes 0");
}

Test(moves_errors, merges) {
#define EXPECT_MERGE_BREAKS(change, ...)                                \
  EXPECT_BREAKS(                                                        \
      kCompact,                                                         \
      (s.move.merge = KVEVICT_MERGE_VALUES, s.bytes = 1 << 17, change), \
      __VA_ARGS__)
  EXPECT_MERGE_BREAKS(s.move.merge = (kvevict_merge)4, "merge 4", "[0, 3]");
  EXPECT_MERGE_BREAKS(s.move.merge = (kvevict_merge)(-1), "merge -1");
  EXPECT_MERGE_BREAKS(s.move.merge_threshold = -0.1, "merge_threshold -0.1",
                      "[0, 1]");
  EXPECT_MERGE_BREAKS(s.move.merge_threshold = 1.5, "merge_threshold 1.5");
  EXPECT_MERGE_BREAKS(s.move.merge_threshold = NAN, "merge_threshold nan");
  EXPECT_MERGE_BREAKS(s.move.merge_fraction = -0.5, "merge_fraction -0.5",
                      "(0, 1]");
  EXPECT_MERGE_BREAKS(s.move.merge_fraction = 1.01, "merge_fraction 1.01");
  EXPECT_MERGE_BREAKS(s.move.merge_fraction = NAN, "merge_fraction nan");
  EXPECT_MERGE_BREAKS(s.slots[1] = 40, "keep[0][1] 40");
  EXPECT_MERGE_BREAKS(memset(&s.view.k, 0, sizeof s.view.k), "k.data is 0",
                      "merge");
  EXPECT_MERGE_BREAKS(s.bytes = 100, "workspace_bytes 100", "the least");
  EXPECT_MERGE_BREAKS(s.workspace += 4, "aligned");
  EXPECT_BREAKS(kReorder, s.move.merge = KVEVICT_MERGE_PIVOT, "merge 2",
                "reordering");
  EXPECT_BREAKS(kTail, s.move.merge = KVEVICT_MERGE_PIVOT, "merge",
                "first_slot 10");
  EXPECT_BREAKS(kTo,
                (s.move.first_slot = 0, s.move.merge = KVEVICT_MERGE_PIVOT),
                "merge", "destination");
}

Test(moves_errors, tails) {
  EXPECT_BREAKS(kTail, s.slots[4] = 9, "keep[1][0] 9", "[10, n_tokens 40)");
  EXPECT_BREAKS(kTail, s.move.first_slot = 37, "first_slot 37 + keep.count 4",
                "n_tokens 40");
  EXPECT_BREAKS(kTail, (s.move.first_slot = 41, s.lists.count = 0),
                "first_slot 41 + keep.count 0", "n_tokens 40");
  EXPECT_BREAKS(kTail, s.move.first_slot = UINT32_MAX, "first_slot 4294967295",
                "n_tokens 40");
  EXPECT_BREAKS(kReorder, s.move.first_slot = 3, "moves[1]: first_slot 3");
}

Test(moves_errors, destinations) {
  EXPECT_BREAKS(kTo, s.other.struct_size = 8, "destination.struct_size", "8");
  EXPECT_BREAKS(kTo, s.other.n_kv_heads = 1, "destination: n_kv_heads 1", "2");
  EXPECT_BREAKS(kTo, s.other.n_companions = 1, "destination: n_companions 1",
                "2");
  EXPECT_BREAKS(kTo, s.other.k.head_dim = 3, "destination: k.dtype f32",
                "head_dim 3", "the view's f32, 64, 0");
  EXPECT_BREAKS(kTo, s.other.v.head_dim = 3, "destination: v.dtype f32",
                "head_dim 3");
  EXPECT_BREAKS(kTo, memset(&s.other.v, 0, sizeof s.other.v),
                "destination: v.data is 0, but not the view's");
  EXPECT_BREAKS(kTo, memset(&s.view.v, 0, sizeof s.view.v),
                "destination: v.data is 0 in the view alone");
  EXPECT_BREAKS(kTo, s.to->companions[1].row_bytes = 4,
                "destination: companions[1]: companion.dtype opaque",
                "row_bytes 4", "opaque, 0, 5");
  EXPECT_BREAKS(kTo, s.other.k.token_stride_bytes = 3, "destination: k",
                "overlap");
  EXPECT_BREAKS(kTo, s.other.block_size = 1, "destination: block_table_len 0",
                "14");
  EXPECT_BREAKS(kTo, s.move.first_slot = INT32_MAX,
                "first_slot 2147483647 + keep.count 4 > 2147483647");
  EXPECT_BREAKS(kTo, s.move.destination = &s.view,
                "destination is the view itself", "NULL");
  EXPECT_BREAKS(kTo, s.other = s.view, "destination is the view itself");
  EXPECT_BREAKS(kReorder, s.move.destination = &s.other,
                "moves[1]: destination is not NULL");
}

/* Companions: two of the test's, then scales of K and V, then minima. */
Test(moves_errors, destinations_of_other_dtypes) {
#define INVALID KVEVICT_ERROR_INVALID_ARGUMENT
#define BREAKS_TO_U8(...) \
  EXPECT_BREAKS_OF(KVEVICT_DTYPE_F32, KVEVICT_DTYPE_U8, kTo, __VA_ARGS__)
#define BREAKS_FROM_U8(...) \
  EXPECT_BREAKS_OF(KVEVICT_DTYPE_U8, KVEVICT_DTYPE_F32, kTo, __VA_ARGS__)
  BREAKS_TO_U8(s.other.n_companions = 5, INVALID, "destination",
               "value_minimum", "v.dtype u8", "below 0");
  BREAKS_TO_U8(s.to->companions[4].role = KVEVICT_ROLE_NONE, INVALID,
               "destination", "key_minimum", "k.dtype u8", "below 0");
  BREAKS_TO_U8(s.other.n_companions = 2, INVALID, "destination",
               "none has role key_scale", "k.dtype u8");
  BREAKS_FROM_U8(s.from->companions[3].role = KVEVICT_ROLE_NONE, INVALID,
                 "n_companions 2", "are not the view's 3");
  BREAKS_FROM_U8(s.view.n_companions = 2, INVALID,
                 "view:", "none has role key_scale", "k.dtype u8");
  BREAKS_TO_U8(s.to->companions[2].token_stride_bytes = 0, INVALID,
               "destination", "the scale and the minimum of k");
  BREAKS_TO_U8(s.other.k.head_dim = 32, INVALID, "destination", "k.head_dim 32",
               "64");
  BREAKS_TO_U8(
      (s.other.k.dtype = KVEVICT_DTYPE_OPAQUE, s.other.k.head_dim = 0,
       s.other.k.row_bytes = 64, s.to->companions[2] = s.to->companions[3],
       s.to->companions[3] = s.to->companions[5], s.other.n_companions = 4),
      KVEVICT_ERROR_UNSUPPORTED, "destination", "k.dtype opaque", "f32");
  BREAKS_TO_U8(s.to->companions[2].data = (uintptr_t)OnRows(&s.view.k), INVALID,
               "overlap");
  EXPECT_BREAKS_OF(KVEVICT_DTYPE_I8, KVEVICT_DTYPE_I8, kTo,
                   s.to->companions[4].token_stride_bytes = 0, INVALID,
                   "destination", "the scale and the minimum of k");
}

/* ---- Caches of one call ---- */

Test(moves_errors, caches_of_one_call_that_overlap_are_refused) {
  test_random random = {31};
  const test_cache_spec spec = {TEST_TOKEN_MAJOR,  2, 40, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 0};
  test_cache* caches[3];
  kvevict_move moves[2];
  int32_t list[2] = {35, 39};
  const kvevict_keep_lists keep = test_lists(list, 2, 1);
  for (int i = 0; i < 3; ++i) caches[i] = test_cache_create(&spec, &random);
  for (int i = 0; i < 2; ++i) {
    moves[i] = (kvevict_move)KVEVICT_MOVE_INIT;
    moves[i].n_tokens = 40;
    moves[i].view = &caches[i]->view;
    moves[i].keep = &keep;
    moves[i].destination = &caches[2]->view;
  }
  test_cache* before = test_cache_clone(caches[2]);
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "moves[1].destination is moves[0].destination again");
  moves[1].first_slot = 1;
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "moves[0].destination.k of 2 tokens",
                 "moves[1].destination.k of 3 tokens", "overlap");
  moves[0].destination = moves[1].view;
  moves[1].destination = NULL;
  moves[1].first_slot = 0;
  EXPECT_INVALID(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL),
                 "moves[0].destination.k of 2 tokens",
                 "moves[1].k of 40 tokens", "overlap");
  test_expect_same_bytes(caches[2], before, "refused");
  /* Adjacent slots do not overlap. */
  moves[1].first_slot = 2;
  EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
  moves[0].destination = moves[1].destination = &caches[2]->view;
  EXPECT_OK(kvevict_compact(test_context(), moves, 2, NULL, 0, NULL));
  for (int i = 0; i < 3; ++i) test_cache_destroy(caches[i]);
  test_cache_destroy(before);
}

/* ---- Queries ---- */

typedef kvevict_status query(const kvevict_context*, const kvevict_move*,
                             size_t, kvevict_workspace*);
static query* const kQueries[] = {kvevict_reorder_workspace,
                                  kvevict_compact_workspace};

/* `change` to a valid move makes queries fail at these doors, of which lists may have
 * no slots. */
#define EXPECT_QUERY_BREAKS(doors, change, ...)                                \
  for (int door = kCompact; door <= kTo; door *= 2) {                          \
    if (((doors)&door) == 0) continue;                                         \
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT, *out = &size;             \
    query* const ask = kQueries[door != kReorder];                             \
    Begin(door, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32);                         \
    s.lists.slots = NULL;                                                      \
    SetMove();                                                                 \
    EXPECT_OK(ask(s.with, s.moves, s.moves_len, out));                         \
    const kvevict_workspace untouched = size;                                  \
    change;                                                                    \
    SetMove();                                                                 \
    EXPECT_INVALID(ask(s.with, s.moves, s.moves_len, out), __VA_ARGS__);       \
    EXPECT(memcmp(&size, &untouched, sizeof size) == 0, "%s: wrote", #change); \
    End(#change);                                                              \
  }

Test(moves_errors, queries) {
  EXPECT_QUERY_BREAKS(kAll, s.with = NULL, "context", "NULL");
  EXPECT_QUERY_BREAKS(kAll, s.moves = NULL, "moves", "NULL");
  EXPECT_QUERY_BREAKS(kAll, out = NULL, "out", "NULL");
  EXPECT_QUERY_BREAKS(kAll, s.moves_len = 129, "moves_len 129", "128");
  EXPECT_QUERY_BREAKS(kAll, s.at = NULL, "view", "NULL");
  EXPECT_QUERY_BREAKS(kAll - kTo, s.keep = NULL, "keep", "NULL");
  EXPECT_QUERY_BREAKS(kBoth, s.lists.count = 1u << 31, "count", "2147483648");
  EXPECT_QUERY_BREAKS(kBoth, s.lists.count = 49, "view", "block_table_len");
  EXPECT_QUERY_BREAKS(kAll, s.lists.n_lists = 3, "n_lists 3", "n_kv_heads 2");
  EXPECT_QUERY_BREAKS(kTail, s.move.first_slot = 60, "view: block_table_len 3",
                      "64 tokens");
  EXPECT_QUERY_BREAKS(kTail, s.move.first_slot = INT32_MAX,
                      "first_slot + keep.count 2147483651 > 2147483647");
  EXPECT_QUERY_BREAKS(
      kTo,
      (s.other.block_size = 16, s.other.block_table = s.view.block_table,
       s.other.block_table_len = 3, s.move.first_slot = 60),
      "destination: block_table_len 3", "64 tokens");
  EXPECT_QUERY_BREAKS(kReorder, s.move.first_slot = 3,
                      "moves[1]: first_slot 3");
  EXPECT_QUERY_BREAKS(kReorder, s.move.destination = &s.other,
                      "moves[1]: destination is not NULL");
  EXPECT_QUERY_BREAKS(kReorder, s.move.merge = KVEVICT_MERGE_PIVOT, "merge 2");
#define EXPECT_MERGE_QUERY_BREAKS(change, ...)                         \
  EXPECT_QUERY_BREAKS(                                                 \
      kCompact,                                                        \
      (s.move.merge = KVEVICT_MERGE_PIVOT, s.lists.count = 3, change), \
      __VA_ARGS__)
  EXPECT_MERGE_QUERY_BREAKS(s.move.n_tokens = 0, "keep.count 3", "n_tokens 0");
  EXPECT_MERGE_QUERY_BREAKS(s.move.n_tokens = 1u << 31, "n_tokens 2147483648");
  GROWN(kvevict_workspace) grown = {KVEVICT_WORKSPACE_INIT};
  kvevict_workspace* const w = &grown.value;
  Begin(kCompact, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32);
  s.move.view = &s.view;
  s.move.keep = &s.lists;
  for (int i = 0; i < 2; ++i) {
    EXPECT_CHECKS_OUT_STRUCT_SIZE(grown, kQueries[i](s.with, &s.move, 1, w));
    cr_expect_eq(w->alignment, 64);
    EXPECT(i == 0 ? w->least_bytes > 0 && w->least_bytes <= w->best_bytes
                  : w->least_bytes == 0 && w->best_bytes == 0,
           "the CPU asks for %zu to %zu bytes", (size_t)w->least_bytes,
           (size_t)w->best_bytes);
  }
  for (uint32_t n_lists = 1; n_lists <= 2; ++n_lists) {
    size_t before = 0; /* a workspace for more slots serves fewer */
    for (uint32_t n = 0; n <= 40; ++n) {
      size_t bytes = 0;
      EXPECT_OK(test_reorder_bytes(s.with, &s.view, n, n_lists, &bytes));
      EXPECT(n == 0 ? bytes == 0 : bytes > 0 && bytes >= before,
             "%zu bytes for %u slots, %zu for one less", bytes, n, before);
      before = bytes;
    }
  }
  End("queries");
}

/* A query reads no row, so a view may have any address. A sanitizer would find an
 * overflow in address arithmetic. */
Test(moves_errors, a_query_takes_any_address) {
  uint64_t addresses[4] = {16, 16, 16, 16};
  int32_t slots[4] = {0, 1, 2, 3};
  kvevict_view view = KVEVICT_VIEW_INIT;
  view.n_kv_heads = 3;
  view.block_size = 4;
  view.k.address_table = (uint64_t)(uintptr_t)addresses;
  view.k.address_table_len = 4;
  view.k.data = UINT64_C(1) << 63;
  view.k.dtype = KVEVICT_DTYPE_F32;
  view.k.head_dim = 4;
  view.k.token_stride_bytes = 16;
  view.k.head_stride_bytes = INT64_C(1) << 61;
  EXPECT_OK(kvevict_view_validate(&view, 16));
  size_t bytes = 0;
  EXPECT_OK(test_reorder_bytes(test_context(), &view, 4, 3, &bytes));
  view.k.head_stride_bytes = INT64_MAX;
  const kvevict_keep_lists lists = test_lists(slots, 4, 1);
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.view = &view;
  move.keep = &lists;
  kvevict_workspace needs = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_reorder_workspace(test_context(), &move, 1, &needs));
}
