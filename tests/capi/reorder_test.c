#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

enum { kMaxSlots = 4096, kGuardBytes = 64 };

/* Reorders in a workspace of just the size it asks for. */
static void Reorder(const kvevict_context* with, const test_cache* cache,
                    uint32_t n_tokens, const int32_t* slots, uint32_t n,
                    uint32_t n_lists, const char* what) {
  size_t bytes = 0;
  EXPECT_OK(test_reorder_bytes(with, &cache->view, n, n_lists, &bytes));
  uint8_t* workspace = aligned_alloc(64, (bytes + kGuardBytes + 63) / 64 * 64);
  memset(workspace, 0xA5, bytes + kGuardBytes);
  EXPECT_OK(test_reorder(with, &cache->view, n_tokens, slots, n, n_lists,
                         workspace, bytes));
  for (size_t i = bytes; i < bytes + kGuardBytes; ++i) {
    EXPECT(workspace[i] == 0xA5, "%s: byte %zu behind the workspace's %zu",
           what, i - bytes, bytes);
  }
  free(workspace);
}

/* Reorders the cache and a clone of it, the latter by the oracle: every byte must
 * be the same. */
static void ExpectAsOracle(const kvevict_context* with, const test_cache* cache,
                           uint32_t n_tokens, const int32_t* slots, uint32_t n,
                           uint32_t n_lists, const char* what) {
  test_cache* ours = test_cache_clone(cache);
  test_cache* theirs = test_cache_clone(cache);
  oracle_compact(&theirs->view, slots, n, n_lists);
  Reorder(with, ours, n_tokens, slots, n, n_lists, what);
  test_expect_same_bytes(ours, theirs, what);
  test_cache_destroy(ours);
  test_cache_destroy(theirs);
}

/* Each list has random slots, a part of a permutation, or a ring's rows from a start. */
static void RandomLists(test_random* random, int32_t* slots, uint32_t n,
                        uint32_t n_lists, uint32_t n_tokens) {
  static int32_t all[kMaxSlots];
  for (uint32_t list = 0; list < n_lists; ++list) {
    int32_t* const to = slots + (size_t)list * n;
    const uint32_t kind = test_random_below(random, 3);
    const uint32_t start = test_random_below(random, n_tokens);
    test_random_permutation(random, all, n_tokens);
    for (uint32_t i = 0; i < n; ++i) {
      to[i] = kind == 0   ? (int32_t)test_random_below(random, n_tokens)
              : kind == 1 ? all[i]
                          : (int32_t)((start + i) % n_tokens);
    }
  }
}

static void TryCache(const kvevict_context* with, const test_cache_trial* t,
                     test_random* random) {
  static int32_t slots[kMaxSlots];
  const uint32_t n = test_random_coin(random)
                         ? t->n_tokens
                         : test_random_below(random, t->n_tokens + 1);
  RandomLists(random, slots, n, t->n_lists, t->n_tokens);
  ExpectAsOracle(with, t->cache, t->n_tokens, slots, n, t->n_lists, t->what);
}

Test(reorder, every_layout_and_dtype_moves_as_the_oracle_says) {
  test_random random = test_random_start("reorder layouts");
  test_try_layouts_and_dtypes(test_context(), &random, TryCache);
  test_try_quantized(test_context(), &random, TryCache);
}

Test(reorder, any_number_of_threads_gives_the_same_bytes) {
  test_random random = test_random_start("reorder threads");
  test_try_threads(&random, TryCache);
}

Test(reorder, the_rows_in_place_already_change_no_byte) {
  test_random random = {4};
  for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
    const test_cache_spec spec = {
        (test_layout)layout, 3, 40, KVEVICT_DTYPE_F32, 5,
        KVEVICT_DTYPE_F16,   7, 2};
    test_cache* cache = test_cache_create(&spec, &random);
    test_cache* before = test_cache_clone(cache);
    int32_t slots[3 * 40];
    for (int i = 0; i < 3 * 40; ++i) slots[i] = i % 40;
    Reorder(test_context(), cache, 40, slots, 40, 3, "all");
    Reorder(test_context(), cache, 40, slots, 17, 1, "some");
    EXPECT_OK(
        test_reorder(test_context(), &cache->view, 40, NULL, 0, 3, NULL, 0));
    EXPECT_OK(
        test_reorder(test_context(), &cache->view, 0, NULL, 0, 1, NULL, 0));
    test_expect_same_bytes(cache, before, test_layout_name(spec.layout));
    test_cache_destroy(cache);
    test_cache_destroy(before);
  }
}

/* ---- Workspaces ---- */

Test(reorder, a_workspace_for_more_slots_serves_fewer) {
  test_random random = {7};
  const test_cache_spec spec = {TEST_PADDED,       4,  90, KVEVICT_DTYPE_F32, 6,
                                KVEVICT_DTYPE_F16, 30, 2};
  test_cache* cache = test_cache_create(&spec, &random);
  for (uint32_t n_lists = 1; n_lists <= 4; n_lists += 3) {
    size_t before = 0;
    for (uint32_t n = 0; n <= 90; ++n) {
      size_t bytes = 0;
      EXPECT_OK(
          test_reorder_bytes(test_context(), &cache->view, n, n_lists, &bytes));
      EXPECT(n == 0 ? bytes == 0 : bytes > 0 && bytes >= before,
             "%zu bytes for %u slots, %zu for one less", bytes, n, before);
      before = bytes;
    }
  }
  test_cache_destroy(cache);
}

Test(reorder, queries_check_what_they_are_asked) {
  test_random random = {8};
  const test_cache_spec spec = {TEST_PAGED_16,     2, 40, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 0};
  test_cache* cache = test_cache_create(&spec, &random);
  const kvevict_view* view = &cache->view;
  GROWN(kvevict_workspace) grown = {KVEVICT_WORKSPACE_INIT};
  kvevict_workspace* w = &grown.value;
  const kvevict_workspace untouched = *w;
  kvevict_keep_lists lists = test_lists(NULL, 4, 1);
  kvevict_move move = {
      .struct_size = sizeof move, .n_tokens = 0, .view = view, .keep = &lists};
  typedef kvevict_status query(const kvevict_context*, const kvevict_move*,
                               size_t, kvevict_workspace*);
  query* const kQueries[] = {kvevict_reorder_workspace,
                             kvevict_compact_workspace};
  for (int i = 0; i < 2; ++i) {
    query* const ask = kQueries[i];
    EXPECT_INVALID(ask(NULL, &move, 1, w), "context", "NULL");
    EXPECT_INVALID(ask(test_context(), NULL, 1, w), "moves", "NULL");
    EXPECT_INVALID(ask(test_context(), &move, 1, NULL), "out", "NULL");
    EXPECT_INVALID(ask(test_context(), &move, 129, w), "moves_len 129", "128");
    move.view = NULL;
    EXPECT_INVALID(ask(test_context(), &move, 1, w), "view", "NULL");
    move.view = view;
    move.keep = NULL;
    EXPECT_INVALID(ask(test_context(), &move, 1, w), "keep", "NULL");
    move.keep = &lists;
    lists.count = 2147483648u;
    EXPECT_INVALID(ask(test_context(), &move, 1, w), "count", "2147483648");
    lists.count = 49;
    EXPECT_INVALID(ask(test_context(), &move, 1, w), "view", "block_table_len");
    lists.count = 4;
    lists.n_lists = 3;
    EXPECT_INVALID(ask(test_context(), &move, 1, w), "n_lists 3",
                   "n_kv_heads 2");
    lists.n_lists = 1;
  }
  cr_assert(memcmp(w, &untouched, sizeof untouched) == 0);
  lists.count = 40;
  for (int i = 0; i < 2; ++i) {
    EXPECT_CHECKS_OUT_STRUCT_SIZE(grown,
                                  kQueries[i](test_context(), &move, 1, w));
    cr_expect_eq(w->alignment, 64);
    EXPECT(i == 0 ? w->least_bytes > 0 && w->least_bytes <= w->best_bytes
                  : w->least_bytes == 0 && w->best_bytes == 0,
           "the CPU asks for %zu to %zu bytes", w->least_bytes, w->best_bytes);
  }
  test_cache_destroy(cache);
}

/* A query reads no row, so a view may have any address. A sanitizer would find an
 * overflow in address arithmetic. */
Test(reorder, a_query_takes_any_address) {
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
  kvevict_keep_lists lists = test_lists(slots, 4, 1);
  size_t bytes = 0;
  EXPECT_OK(test_reorder_bytes(test_context(), &view, 4, 3, &bytes));
  view.k.head_stride_bytes = INT64_MAX;
  kvevict_move move = KVEVICT_MOVE_INIT;
  move.view = &view;
  move.keep = &lists;
  kvevict_workspace needs = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_reorder_workspace(test_context(), &move, 1, &needs));
}
