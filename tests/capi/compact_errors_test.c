/* kvevict_compact() and kvevict_reorder() refuse these moves; no byte moves. */
#include <math.h>
#include <stdlib.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"

typedef enum doors { kCompact = 1, kReorder = 2, kBoth = 3 } doors;

/* `change` to a valid move makes it fail at these doors. */
#define EXPECT_BREAKS(doors, change, ...)                                     \
  for (int door = kCompact; door <= kReorder; ++door) {                       \
    if (((doors)&door) == 0) continue;                                        \
    test_random random = {6};                                                 \
    const test_cache_spec spec = {                                            \
        TEST_PAGED_16, 2, 40, KVEVICT_DTYPE_F32, 4, KVEVICT_DTYPE_F32, 4, 0}; \
    test_cache* cache = test_cache_create(&spec, &random);                    \
    test_cache* before = test_cache_clone(cache);                             \
    int32_t slots[8] = {1, 3, 20, 39, 0, 2, 25, 38};                          \
    kvevict_view view = cache->view;                                          \
    const kvevict_context* with = test_context();                             \
    const kvevict_view* at = &view;                                           \
    kvevict_keep_lists lists = test_lists(slots, 4, 2), *keep = &lists;       \
    uint32_t counts[2] = {4, 4};                                              \
    kvevict_move move = KVEVICT_MOVE_INIT, *moves = &move;                    \
    size_t moves_len = 1, bytes = 0;                                          \
    move.n_tokens = 40;                                                       \
    EXPECT_OK(test_reorder_bytes(with, &view, 4, 2, &bytes));                 \
    uint8_t* const memory = aligned_alloc(64, 1 << 16);                       \
    uint8_t* workspace = memory;                                              \
    change;                                                                   \
    move.view = at;                                                           \
    move.keep = keep;                                                         \
    EXPECT_INVALID((door == kCompact ? kvevict_compact : kvevict_reorder)(    \
                       with, moves, moves_len, workspace, bytes, NULL),       \
                   __VA_ARGS__);                                              \
    test_expect_same_bytes(cache, before, #change);                           \
    (void)slots, (void)view, (void)counts;                                    \
    free(memory);                                                             \
    test_cache_destroy(cache);                                                \
    test_cache_destroy(before);                                               \
  }

Test(compact_errors, null_pointers) {
  EXPECT_BREAKS(kBoth, with = NULL, "context", "NULL");
  EXPECT_BREAKS(kBoth, moves = NULL, "moves", "NULL");
  EXPECT_BREAKS(kBoth, at = NULL, "view", "NULL");
  EXPECT_BREAKS(kBoth, keep = NULL, "keep", "NULL");
  EXPECT_BREAKS(kBoth, lists.slots = NULL, "keep.slots", "NULL", "4");
}

Test(compact_errors, wrong_lengths) {
  EXPECT_BREAKS(kBoth, move.struct_size = 8, "struct_size", "8");
  EXPECT_BREAKS(kBoth, lists.struct_size = 8, "struct_size", "8");
  EXPECT_BREAKS(kBoth, lists.reserved = 8, "keep.reserved 8");
  EXPECT_BREAKS(kBoth, lists.n_lists = 0, "n_lists 0");
  EXPECT_BREAKS(kBoth, lists.n_lists = 3, "n_lists 3", "n_kv_heads 2");
  EXPECT_BREAKS(kBoth, lists.slots_len = 7, "slots_len 7", "8");
  EXPECT_BREAKS(kBoth, lists.list_stride = 3, "list_stride 3", "count 4");
  EXPECT_BREAKS(kBoth, lists.list_stride = 5, "slots_len 8", "9");
  EXPECT_BREAKS(kBoth, lists.list_stride = UINT64_MAX / 2, "slots_len 8");
  EXPECT_BREAKS(kBoth, move.n_tokens = 3, "count 4", "n_tokens 3");
  EXPECT_BREAKS(kBoth, move.n_tokens = 2147483648u, "n_tokens", "2147483648");
  EXPECT_BREAKS(kBoth, move.n_tokens = 49, "block_table_len", "49");
  EXPECT_BREAKS(kBoth, moves_len = 129, "moves_len 129", "128");
  EXPECT_BREAKS(kBoth, (lists.counts = counts, counts[1] = 5),
                "keep.counts[1] 5", "4");
}

Test(compact_errors, slots_that_are_not_there) {
  EXPECT_BREAKS(kBoth, slots[0] = -1, "keep[0][0] -1");
  EXPECT_BREAKS(kBoth, slots[3] = 40, "keep[0][3] 40", "40");
  EXPECT_BREAKS(kBoth, slots[7] = 40, "keep[1][3] 40", "40");
  EXPECT_BREAKS(kBoth, slots[3] = INT32_MAX, "keep[0][3] 2147483647");
  EXPECT_BREAKS(kBoth, move.n_tokens = 39, "keep[0][3] 39", "39");
}

Test(compact_errors, compaction_of_lists_that_do_not_ascend) {
  EXPECT_BREAKS(kCompact, (slots[0] = 3, slots[1] = 1), "keep[0][1] 1");
  EXPECT_BREAKS(kCompact, slots[1] = 1, "keep[0][1] 1");
  EXPECT_BREAKS(kCompact, slots[6] = 2, "keep[1][2] 2");
}

Test(compact_errors, views) {
  EXPECT_BREAKS(kBoth, view.struct_size = 8, "struct_size", "8");
  EXPECT_BREAKS(kBoth, view.k.dtype = 77, "k.dtype", "77");
  EXPECT_BREAKS(kBoth, view.v.token_stride_bytes = 3, "v", "overlap");
  EXPECT_BREAKS(kBoth, view.block_table_len = 1, "block_table_len", "1");
}

/* An aligned address in the first used block of a paged view's plane. */
static uint8_t* OnRows(const kvevict_view* view, const kvevict_plane* plane) {
  const int64_t block = view->block_table[0] * plane->block_stride_bytes;
  return (uint8_t*)(uintptr_t)((plane->data + (uint64_t)block + 64) / 64 * 64);
}

Test(compact_errors, workspaces) {
  EXPECT_BREAKS(kReorder, workspace = OnRows(&view, &view.k), "workspace 0x",
                "overlaps moves[0]");
  EXPECT_BREAKS(kReorder, workspace = OnRows(&view, &view.v), "workspace 0x",
                "overlaps moves[0]");
  EXPECT_BREAKS(kReorder, workspace = NULL, "workspace is NULL");
  EXPECT_BREAKS(kReorder, workspace += 32, "aligned", "64");
  EXPECT_BREAKS(kReorder, bytes -= 1, "workspace_bytes");
  EXPECT_BREAKS(kReorder, (bytes = 0, workspace = NULL), "workspace_bytes 0");
}

Test(compact_errors, merges) {
#define EXPECT_MERGE_BREAKS(change, ...)                                      \
  EXPECT_BREAKS(kCompact,                                                     \
                (move.merge = KVEVICT_MERGE_VALUES, bytes = 1 << 16, change), \
                __VA_ARGS__)
  EXPECT_MERGE_BREAKS(move.merge = (kvevict_merge)4, "merge 4", "[0, 3]");
  EXPECT_MERGE_BREAKS(move.merge = (kvevict_merge)(-1), "merge -1");
  EXPECT_MERGE_BREAKS(move.merge_threshold = -0.1, "merge_threshold -0.1",
                      "[0, 1]");
  EXPECT_MERGE_BREAKS(move.merge_threshold = 1.5, "merge_threshold 1.5");
  EXPECT_MERGE_BREAKS(move.merge_threshold = NAN, "merge_threshold nan");
  EXPECT_MERGE_BREAKS(move.merge_fraction = -0.5, "merge_fraction -0.5",
                      "(0, 1]");
  EXPECT_MERGE_BREAKS(move.merge_fraction = 1.01, "merge_fraction 1.01");
  EXPECT_MERGE_BREAKS(move.merge_fraction = NAN, "merge_fraction nan");
  EXPECT_MERGE_BREAKS(slots[1] = 40, "keep[0][1] 40");
  EXPECT_MERGE_BREAKS(memset(&view.k, 0, sizeof view.k), "k.data is 0",
                      "merge");
  EXPECT_MERGE_BREAKS(bytes = 100, "workspace_bytes 100", "the least");
  EXPECT_MERGE_BREAKS(workspace += 4, "aligned");
  EXPECT_BREAKS(kReorder, move.merge = KVEVICT_MERGE_PIVOT, "merge 2",
                "reordering");
}
