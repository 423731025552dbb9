/* kvevict_compact() and kvevict_reorder() move every kind of row from every layout to
 * every other as a naive loop does, on every SIMD target, alone and in batches. */
#include <stdlib.h>
#include <string.h>

#include "kvevict/edit.h"
#include "tests/capi/support/contexts.h"
#include "tests/capi/support/device.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/floats.h"
#include "tests/capi/support/model.h"
#include "tests/capi/support/moves.h"
#include "tests/capi/support/undo.h"

enum { kMostMoves = 5 };

/* Reorders in just the workspace that is asked for. */
static void Reorder(const kvevict_context* with, const kvevict_move* moves,
                    uint32_t n) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_reorder_workspace(with, moves, n, &size));
  const size_t bytes = (size_t)size.least_bytes;
  uint8_t* const workspace = test_workspace_memory(bytes);
  memset(workspace, TEST_GUARD, bytes + 64);
  EXPECT_OK(kvevict_reorder(with, moves, n, workspace, bytes, NULL));
  EXPECT(test_is_filled(workspace + bytes, 64), "wrote behind the workspace");
  free(workspace);
}

/* The CPU needs no workspace and leaves one alone. CUDA writes to just its own. */
static void Compact(const kvevict_context* with, const kvevict_move* moves,
                    uint32_t n) {
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  EXPECT_OK(kvevict_compact_workspace(with, moves, n, &size));
  const size_t bytes = (size_t)size.best_bytes;
  EXPECT(test_on_cuda() || bytes == 0, "%zu bytes", bytes);
  uint8_t* const workspace = test_workspace_memory(bytes);
  memset(workspace, TEST_GUARD, bytes + 64);
  EXPECT_OK(kvevict_compact(with, moves, n,
                            workspace + (test_on_cuda() ? 0 : 1),
                            test_on_cuda() ? bytes : 63, NULL));
  EXPECT(test_is_filled(workspace + bytes, 64), "wrote behind the workspace");
  free(workspace);
}

/* Moves a cache of a layout and dtype, often with others in one call. */
static void Try(test_random* random, test_move_kind kind, test_layout from,
                kvevict_dtype k) {
  const test_any_context with = test_draw_context(random);
  const uint32_t n =
      test_random_coin(random) ? 1 : test_random_between(random, 2, kMostMoves);
  test_moved* all[kMostMoves];
  kvevict_move moves[kMostMoves];
  for (uint32_t i = 0; i < n; ++i) {
    test_move_kind of = kind;
    if (i > 0) {
      from = test_random_below(random, TEST_N_LAYOUTS);
      k = test_random_between(random, KVEVICT_DTYPE_F32, test_last_dtype());
      if (kind != TEST_MOVE_REORDER) {
        of = test_random_below(random, TEST_MOVE_REORDER);
      }
    }
    all[i] = test_moved_draw(random, of, from, k);
    moves[i] = all[i]->move;
  }
  (kind == TEST_MOVE_REORDER ? Reorder : Compact)(with.context, moves, n);
  for (uint32_t i = 0; i < n; ++i) {
    test_moved_check(all[i], with.is_fused);
    test_moved_destroy(all[i]);
  }
}

Test(moves, are_those_of_a_naive_loop) {
  test_random random = test_random_start("moves");
  const kvevict_dtype last = test_last_dtype();
  uint32_t i = 0;
  for (int round = 0; round < 2; ++round) {
    for (int kind = 0; kind < TEST_N_MOVES; ++kind) {
      for (int from = 0; from < TEST_N_LAYOUTS; ++from) {
        kvevict_dtype k = kind == TEST_MOVE_REQUANTIZE ? KVEVICT_DTYPE_F32
                                                       : KVEVICT_DTYPE_OPAQUE;
        for (; k <= last; ++k) {
          if (test_runs(i++)) Try(&random, kind, from, k);
        }
      }
    }
  }
}

/* Rows that an eviction drops come back from its undo memory, with the SIMD code for
 * every target. */
Test(moves, are_undone) {
  test_random random = test_random_start("moves undone");
  for (uint32_t round = 0; round < 90; ++round) {
    if (!test_runs(round)) continue;
    test_model_spec spec = test_small_model("random:budget=20");
    spec.context = test_draw_context(&random).context;
    spec.layout = round % TEST_N_LAYOUTS;
    spec.n_companions = test_random_below(&random, 3);
    spec.k_dtype =
        test_random_between(&random, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_BF16);
    spec.k_head_dim =
        round % 9 == 0 ? 300 : test_random_between(&random, 1, 40);
    spec.v_head_dim = test_random_between(&random, 0, 70);
    test_model* m = test_model_create(&spec, random);
    test_model_append(m, test_random_between(&random, 21, 80));
    const test_lent lent = test_lend(test_undo_bytes(m));
    EXPECT_OK(test_evict_lending(m, lent, NULL));
    EXPECT(test_model_stored(m, 0) == 20, "nothing went");
    EXPECT_OK(test_undo(m, lent));
    test_model_check(m, "undone");
    test_lent_check(lent, "undone");
    test_lent_return(lent);
    test_model_destroy(m);
  }
}
