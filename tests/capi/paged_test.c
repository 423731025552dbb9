/* Sequences in a pool, each against one with memory of its own: see
 * support/stage.h. */
#include <stdlib.h>

#include "kvevict/batch.h"
#include "kvevict/experimental.h"
#include "kvevict/paged.h"
#include "tests/capi/support/expect.h"
#include "tests/capi/support/random.h"
#include "tests/capi/support/stage.h"

static void Live(const char* policy, test_random* random, uint32_t n_steps,
                 uint32_t* n_refused) {
  test_stage* const s = malloc(sizeof *s);
  test_stage_begin(s, random, policy);
  for (uint32_t step = 0; step < n_steps; ++step) {
    const uint32_t what = test_random_below(random, 16);
    test_actor* const a =
        s->n_actors == 0 ? NULL
                         : &s->actors[test_random_below(random, s->n_actors)];
    if (a == NULL || (what == 0 && s->n_actors < TEST_STAGE_SEQUENCES)) {
      test_stage_add(s);
    } else if (what == 1 && s->n_actors > 2) {
      test_stage_remove(s, (uint32_t)(a - s->actors));
    } else if (what < 9) {
      test_stage_append(s, a);
    } else if (what < 11) {
      test_stage_trim(s, a);
    } else if (what < 13) {
      test_stage_overwrite(s, a);
    } else {
      *n_refused += !test_stage_evict(s);
    }
    test_stage_check(s);
  }
  test_stage_end(s);
  free(s);
}

Test(paged_cache, holds_what_each_sequence_would_hold_alone) {
  static const char* const kPolicies[] = {
      "knorm:budget=20,sink=1",
      "knorm:budget=24,scope=layer",
      "streaming-llm:budget=17,sink=3",
      "random:budget=16,heads=adaptive",
      "random:budget=16,sink=0,heads=adaptive,floor=0,split=scores",
      "knorm:budget=0.5,sink=0,heads=adaptive,split=scores,rounding=together",
      "knorm:budget=30,split=geometric",
      "random:budget=0.5,sink=0,select_block=4",
      "random:budget=0.5,sink=0,select_block=24,scope=layer",
      "streaming-llm:budget=30,sink=3,select_block=8",
      "none"};
  test_random random = test_random_start("paged_cache/lives");
  uint32_t n_refused = 0;
  const uint32_t n = sizeof kPolicies / sizeof *kPolicies;
  for (uint32_t i = 0; i < 10 * n; ++i) {
    Live(kPolicies[i % n], &random, 120, &n_refused);
  }
  EXPECT(n_refused > 0, "no eviction was ever short of blocks");
}

/* A merge writes rows in any block, but none of the fork's. */
Test(paged_cache, merging_leaves_forks_alone) {
  test_random random = test_random_start("paged_cache/merge");
  test_stage* const s = malloc(sizeof *s);
  test_stage_begin(s, &random,
                   "knorm:budget=10,sink=0,merge=pivot,scope=layer");
  test_stage_resize(s, s->options.block_size, 400);
  test_stage_add(s);
  test_stage_append(s, &s->actors[0]);
  test_stage_append(s, &s->actors[0]);
  test_stage_append(s, &s->actors[0]);
  test_actor* const fork = test_stage_fork(s, &s->actors[0]);
  kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
  item.cached = s->actors[0].cached;
  item.sequence = s->actors[0].sequence;
  EXPECT_OK(
      kvevict_paged_evict(&item, 1, s->workspace, s->workspace_bytes, NULL));
  test_actor_check_rows(fork);
  test_stage_remove(s, 0);
  test_stage_end(s);
  free(s);
}

/* Takes the blocks of every layer, except for what 12 tokens need. */
static void TakeAllBut12(test_stage* s, kvevict_paged_sequence** takers,
                         size_t n) {
  kvevict_paged_sequence* last = NULL;
  EXPECT_OK(kvevict_paged_sequence_create(s->cache, &last));
  EXPECT_OK(kvevict_paged_sequence_append(last, 12, NULL));
  for (size_t i = 0; i < n; ++i) {
    EXPECT_OK(kvevict_paged_sequence_create(s->cache, &takers[i]));
    for (uint32_t t = 0; t < TEST_STAGE_TOKENS / 4; ++t) {
      if (kvevict_paged_sequence_append(takers[i], 4, NULL) != KVEVICT_OK)
        break;
    }
  }
  EXPECT_FAILS(kvevict_paged_sequence_append(last, 4, NULL),
               KVEVICT_ERROR_OUT_OF_MEMORY, "are free");
  kvevict_paged_sequence_destroy(last);
}

/* Two forks share a block and write to it in one call. As soon as one has its copy,
 * the other has the block to itself. */
Test(paged_cache, forks_evicted_together_make_one_copy) {
  test_random random = test_random_start("paged_cache/one_copy");
  test_stage* const s = malloc(sizeof *s);
  test_stage_begin(s, &random, "knorm:budget=10,sink=0,scope=layer");
  test_stage_resize(s, 4, 200);
  test_stage_add(s);
  while (test_actor_longest(&s->actors[0]) < 40)
    test_stage_append(s, &s->actors[0]);
  test_actor* const fork = test_stage_fork(s, &s->actors[0]);
  kvevict_paged_sequence* takers[16];
  TakeAllBut12(s, takers, 16);
  test_positions* const before = malloc(sizeof *before);
  test_actor_positions(fork, before);
  kvevict_paged_eviction items[2];
  for (int i = 0; i < 2; ++i) {
    items[i] = (kvevict_paged_eviction)KVEVICT_PAGED_EVICTION_INIT;
    items[i].cached = s->actors[i].cached;
    items[i].sequence = s->actors[i].sequence;
  }
  EXPECT_OK(
      kvevict_paged_evict(items, 2, s->workspace, s->workspace_bytes, NULL));
  for (int i = 0; i < 16; ++i) kvevict_paged_sequence_destroy(takers[i]);
  test_actor_follow(&s->actors[0], before);
  test_actor_follow(fork, before);
  EXPECT(s->actors[0].n_slots[0] == 10, "nothing went");
  test_stage_check(s);
  free(before);
  test_stage_end(s);
  free(s);
}

/* Whole blocks go without writing, though no block is free and all are shared. */
Test(paged_cache, drops_blocks_without_room_and_without_writing) {
  test_random random = test_random_start("paged_cache/drops");
  for (uint32_t turn = 0; turn < 8; ++turn) {
    test_stage* const s = malloc(sizeof *s);
    test_stage_begin(s, &random,
                     "knorm:budget=30,sink=2,select_block=8,scope=layer");
    const uint32_t block_size = 1u << turn % 4;
    test_stage_resize(s, block_size, 64 / block_size);
    test_stage_add(s);
    while (test_actor_longest(&s->actors[0]) < 64) {
      const uint32_t before = test_actor_longest(&s->actors[0]);
      test_stage_append(s, &s->actors[0]);
      if (test_actor_longest(&s->actors[0]) == before) break;
    }
    test_stage_fork(s, &s->actors[0]);
    test_stage_check(s);
    uint8_t* const bytes = malloc(s->memory_bytes);
    memcpy(bytes, s->memory + 256, s->memory_bytes);
    const kvevict_paged_cache_usage full = test_stage_usage(s);
    test_positions* const before = malloc(sizeof *before);
    test_actor_positions(&s->actors[0], before);
    kvevict_paged_eviction item = KVEVICT_PAGED_EVICTION_INIT;
    item.cached = s->actors[0].cached;
    item.sequence = s->actors[0].sequence;
    EXPECT_OK(
        kvevict_paged_evict(&item, 1, s->workspace, s->workspace_bytes, NULL));
    test_actor_follow(&s->actors[0], before);
    test_stage_check(s);
    EXPECT(memcmp(bytes, s->memory + 256, s->memory_bytes) == 0,
           "rows were written");
    EXPECT(s->actors[0].n_slots[0] <= 30, "nothing went");
    cr_expect_eq(test_stage_usage(s).n_free, full.n_free,
                 "the fork holds all of them");
    test_stage_remove(s, 1);
    cr_expect_gt(test_stage_usage(s).n_free, full.n_free);
    test_stage_check(s);
    test_stage_append(s, &s->actors[0]);
    test_stage_check(s);
    free(before);
    free(bytes);
    test_stage_end(s);
    free(s);
  }
}
