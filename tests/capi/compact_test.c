#include <stdlib.h>
#include <string.h>

#include "tests/capi/support/cache_trials.h"
#include "tests/capi/support/doors.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/plan.h"
#include "tests/oracle/compact.h"

enum { kMaxKeep = 4096 };

/* Compacts the cache and a clone of it, the latter by the oracle; they must hold the
 * same rows, and nothing but rows may have changed. */
static void ExpectAsOracle(const kvevict_context* with, const test_cache* cache,
                           uint32_t n_tokens, const int32_t* keep,
                           uint32_t n_keep, uint32_t n_lists,
                           const char* what) {
  test_cache* ours = test_cache_clone(cache);
  test_cache* theirs = test_cache_clone(cache);
  oracle_compact(&theirs->view, keep, n_keep, n_lists);
  EXPECT_OK(test_compact(with, &ours->view, n_tokens, keep, n_keep, n_lists));
  test_expect_same_rows(ours, theirs, n_keep, what);
  test_expect_same_outside(ours, cache, 0, n_tokens, what);
  test_cache_destroy(ours);
  test_cache_destroy(theirs);
}

static void RandomLists(test_random* random, int32_t* keep, uint32_t n_keep,
                        uint32_t n_lists, uint32_t n_tokens) {
  for (uint32_t list = 0; list < n_lists; ++list) {
    test_random_ascending(random, keep + (size_t)list * n_keep, n_keep,
                          n_tokens);
  }
}

static void TryCache(const kvevict_context* with, const test_cache_trial* t,
                     test_random* random) {
  static int32_t keep[kMaxKeep];
  const uint32_t n_keep = test_random_below(random, t->n_tokens + 1);
  RandomLists(random, keep, n_keep, t->n_lists, t->n_tokens);
  ExpectAsOracle(with, t->cache, t->n_tokens, keep, n_keep, t->n_lists,
                 t->what);
}

Test(compact, every_layout_and_dtype_moves_as_the_oracle_says) {
  test_random random = test_random_start("compact layouts");
  test_try_layouts_and_dtypes(test_context(), &random, TryCache);
  test_try_quantized(test_context(), &random, TryCache);
}

Test(compact, opaque_rows_of_any_size_move) {
  test_random random = test_random_start("compact rows");
  for (uint32_t bytes = 1; bytes <= 600; ++bytes) {
    const test_cache_spec spec = {(test_layout)(bytes % TEST_N_LAYOUTS),
                                  1 + bytes % 3,
                                  21,
                                  KVEVICT_DTYPE_OPAQUE,
                                  bytes,
                                  KVEVICT_DTYPE_OPAQUE,
                                  601 - bytes,
                                  0};
    test_try_spec(&spec, test_context(), &random, TryCache);
  }
}

Test(compact, usual_head_sizes_move) {
  test_random random = test_random_start("compact head sizes");
  const uint32_t kDims[] = {64, 80, 96, 112, 128, 192, 256, 576};
  for (int d = 0; d < 8; ++d) {
    for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
      const test_cache_spec spec = {
          (test_layout)layout, 2,        35,
          KVEVICT_DTYPE_F16,   kDims[d], KVEVICT_DTYPE_F32,
          kDims[7 - d],        1};
      test_try_spec(&spec, test_context(), &random, TryCache);
    }
  }
}

Test(compact, shapes_of_keep_lists) {
  test_random random = {3};
  const test_cache_spec spec = {TEST_HEAD_MAJOR,   2, 100, KVEVICT_DTYPE_F32, 6,
                                KVEVICT_DTYPE_F32, 6, 1};
  test_cache* cache = test_cache_create(&spec, &random);
  int32_t keep[100];
  for (uint32_t first = 0; first < 100; first += 9) { /* one run anywhere */
    for (uint32_t i = 0; i < 100 - first; ++i) keep[i] = (int32_t)(first + i);
    ExpectAsOracle(test_context(), cache, 100, keep, 100 - first, 1, "one run");
    ExpectAsOracle(test_context(), cache, 100, keep, 1, 1, "one row");
  }
  for (uint32_t step = 1; step < 12; ++step) { /* evenly spread */
    uint32_t n = 0;
    for (uint32_t t = step / 2; t < 100; t += step) keep[n++] = (int32_t)t;
    ExpectAsOracle(test_context(), cache, 100, keep, n, 1, "spread");
  }
  for (uint32_t hole = 0; hole < 100; hole += 11) { /* all but one */
    for (uint32_t i = 0; i < 99; ++i) keep[i] = (int32_t)(i + (i >= hole));
    ExpectAsOracle(test_context(), cache, 100, keep, 99, 1, "all but one");
  }
  test_cache_destroy(cache);
}

Test(compact, keeping_all_or_none_changes_no_byte) {
  test_random random = {4};
  for (int layout = 0; layout < TEST_N_LAYOUTS; ++layout) {
    const test_cache_spec spec = {
        (test_layout)layout, 3, 40, KVEVICT_DTYPE_F32, 5,
        KVEVICT_DTYPE_F16,   7, 2};
    test_cache* cache = test_cache_create(&spec, &random);
    test_cache* before = test_cache_clone(cache);
    int32_t keep[3 * 40];
    for (int i = 0; i < 3 * 40; ++i) keep[i] = i % 40;
    EXPECT_OK(test_compact(test_context(), &cache->view, 40, keep, 40, 1));
    EXPECT_OK(test_compact(test_context(), &cache->view, 40, keep, 40, 3));
    EXPECT_OK(test_compact(test_context(), &cache->view, 40, keep, 17, 1));
    EXPECT_OK(test_compact(test_context(), &cache->view, 40, NULL, 0, 1));
    EXPECT_OK(test_compact(test_context(), &cache->view, 40, NULL, 0, 3));
    EXPECT_OK(test_compact(test_context(), &cache->view, 0, NULL, 0, 1));
    test_expect_same_bytes(cache, before, test_layout_name(layout));
    test_cache_destroy(cache);
    test_cache_destroy(before);
  }
}

Test(compact, any_number_of_threads_gives_the_same_bytes) {
  test_random random = test_random_start("compact threads");
  test_try_threads(&random, TryCache);
}

Test(compact, absent_v_moves_keys_alone) {
  test_random random = {5};
  const test_cache_spec spec = {
      TEST_TOKEN_MAJOR,  1, 30, KVEVICT_DTYPE_BF16, 576,
      KVEVICT_DTYPE_F32, 0, 0};
  test_try_spec(&spec, test_context(), &random, TryCache);
}

Test(compact, the_cpu_leaves_a_workspace_alone) {
  test_random random = {9};
  const test_cache_spec spec = {TEST_TOKEN_MAJOR,  2, 40, KVEVICT_DTYPE_F32, 4,
                                KVEVICT_DTYPE_F32, 4, 0};
  test_cache* ours = test_cache_create(&spec, &random);
  test_cache* theirs = test_cache_clone(ours);
  const int32_t keep[3] = {7, 20, 39};
  uint8_t workspace[65];
  memset(workspace, 0xA5, sizeof workspace);
  oracle_compact(&theirs->view, keep, 3, 1);
  const kvevict_keep_lists lists = test_lists(keep, 3, 1);
  const kvevict_move move = {.struct_size = sizeof move,
                             .n_tokens = 40,
                             .view = &ours->view,
                             .keep = &lists};
  EXPECT_OK(kvevict_compact(test_context(), &move, 1, workspace + 1, 64, NULL));
  test_expect_same_rows(ours, theirs, 3, "with a workspace");
  for (int i = 0; i < 65; ++i) {
    EXPECT(workspace[i] == 0xA5, "byte %d is %d", i, workspace[i]);
  }
  test_cache_destroy(ours);
  test_cache_destroy(theirs);
}
