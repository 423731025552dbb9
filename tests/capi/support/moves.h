/* Random moves of rows, and what a naive loop makes of them. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MOVES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MOVES_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/cache.h"
#include "tests/capi/support/random.h"

enum { TEST_MOVED_HEADS = 4, TEST_MOVED_SLOTS = 60 };

typedef enum test_move_kind {
  TEST_MOVE_DOWN,       /* in place, ascending, perhaps a tail */
  TEST_MOVE_COPY,       /* to another cache of the same dtypes */
  TEST_MOVE_REQUANTIZE, /* to another cache of any dtypes */
  TEST_MOVE_REORDER,    /* in place, any order */
  TEST_N_MOVES
} test_move_kind;

/* A move of one layer, in place or to another cache. Entries of block tables that the
 * call need not read are invalid. */
typedef struct test_moved {
  test_move_kind kind;
  test_cache *ours, *before; /* where rows come from */
  test_cache *to, *theirs;   /* where they go; in place `to` is ours */
  kvevict_view view, destination;
  int32_t *table, *to_table;
  uint32_t held[TEST_MOVED_HEADS], counts[TEST_MOVED_HEADS];
  int32_t slots[TEST_MOVED_HEADS * TEST_MOVED_SLOTS];
  kvevict_keep_lists keep;
  kvevict_move move;
} test_moved;

/* Draws sizes, other layouts and dtypes, heads of unlike lengths, and lists. */
test_moved* test_moved_draw(test_random* random, test_move_kind kind,
                            test_layout from, kvevict_dtype k_dtype);

/* Fails unless the call has moved rows as it should and changed nothing else. is_fused:
 * as of the context. */
void test_moved_check(test_moved* moved, bool is_fused);

void test_moved_destroy(test_moved* moved);

/* One row of K or V with its scales and minima, as a loop over bytes or numbers moves it. */
void test_move_row(const kvevict_view* from, const kvevict_plane* plane,
                   uint32_t slot, const kvevict_view* to,
                   const kvevict_plane* to_plane, uint32_t to_slot,
                   uint32_t head, bool is_fused);

/* The same row stored by its numbers, even if it has the dtype already. */
void test_store_anew(const kvevict_view* from, const kvevict_plane* plane,
                     uint32_t slot, const kvevict_view* to,
                     const kvevict_plane* to_plane, uint32_t to_slot,
                     uint32_t head, bool is_fused);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MOVES_H_ */
