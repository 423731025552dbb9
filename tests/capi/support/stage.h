/* Sequences in a pool, each beside one with memory of its own. Every row has a
 * number, and the holders of every block are counted. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_STAGE_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_STAGE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvevict/paged.h"
#include "tests/capi/support/random.h"

enum {
  TEST_STAGE_LAYERS = 3, /* with a cache */
  TEST_STAGE_HEADS = 3,
  TEST_STAGE_TOKENS = 70,
  TEST_STAGE_SEQUENCES = 6
};

typedef struct test_actor {
  kvevict_paged_sequence* cached;
  kvevict_sequence* sequence;
  /* The content of each slot; 0: anything. */
  uint32_t rows[TEST_STAGE_LAYERS][TEST_STAGE_HEADS][TEST_STAGE_TOKENS];
  uint32_t n_slots[TEST_STAGE_LAYERS];
} test_actor;

typedef struct test_stage {
  test_random* random;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_paged_cache* cache;
  kvevict_paged_cache_options options;
  void* workspace;
  size_t workspace_bytes;
  uint8_t* memory; /* the blocks' memory with guards; NULL: the cache's own */
  size_t memory_bytes;
  uint32_t last_row;
  uint32_t n_actors;
  test_actor actors[TEST_STAGE_SEQUENCES];
} test_stage;

void test_stage_begin(test_stage* s, test_random* random, const char* policy);
void test_stage_end(test_stage* s);

/* Makes the cache anew, before sequences are added. */
void test_stage_resize(test_stage* s, uint32_t block_size, uint32_t n_blocks);

/* Creates a sequence or forks one; forks this one; destroys actor i. */
void test_stage_add(test_stage* s);
test_actor* test_stage_fork(test_stage* s, const test_actor* from);
void test_stage_remove(test_stage* s, uint32_t i);

/* Random operations on an actor. Overwriting touches rows that are shared or not. */
void test_stage_append(test_stage* s, test_actor* a);
void test_stage_overwrite(test_stage* s, test_actor* a);
void test_stage_trim(test_stage* s, test_actor* a);
uint32_t test_actor_longest(const test_actor* a);

/* Evicts some of the sequences in one call. False: blocks were short. */
bool test_stage_evict(test_stage* s);

/* The positions of an actor's rows, which they follow through an eviction. */
typedef struct test_positions {
  int32_t of[TEST_STAGE_LAYERS][TEST_STAGE_HEADS][TEST_STAGE_TOKENS];
  uint32_t n[TEST_STAGE_LAYERS][TEST_STAGE_HEADS];
} test_positions;
void test_actor_positions(const test_actor* a, test_positions* out);
void test_actor_follow(test_actor* a, const test_positions* before);

/* Checks all rows and the holders of all blocks, or an actor's rows. */
void test_stage_check(const test_stage* s);
void test_actor_check_rows(const test_actor* a);
kvevict_paged_cache_usage test_stage_usage(const test_stage* s);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_STAGE_H_ */
