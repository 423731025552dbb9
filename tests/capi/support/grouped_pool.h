/* Sequences in a paged cache, plain or as in KIVI. Each has a model of its own
 * that knows by the oracle what its rows stand for. The holders of every block
 * are counted. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_POOL_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_POOL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvevict/paged.h"
#include "tests/capi/support/grouped.h"
#include "tests/capi/support/random.h"

enum {
  TEST_POOL_LAYERS = 3, /* with a cache */
  TEST_POOL_HEADS = 3,
  TEST_POOL_TOKENS = 130,
  TEST_POOL_MOST = 6, /* sequences */
  TEST_POOL_DIM = 32  /* at most */
};

/* The first and the last layer share blocks. The middle one has no values. A
 * layer without a cache lies behind the first. */
extern const uint32_t test_pool_heads[TEST_POOL_LAYERS];
bool test_pool_has_values(uint32_t layer);

typedef struct test_pooled {
  kvevict_paged_sequence* cached;
  kvevict_sequence* sequence;
  test_grouped* held[TEST_POOL_LAYERS];
  uint32_t n_slots[TEST_POOL_LAYERS]; /* of the longest head */
} test_pooled;

typedef struct test_pool {
  test_random* random;
  kvevict_context* context;
  kvevict_plan* plan;
  kvevict_paged_cache* cache;
  kvevict_paged_cache_options options;
  uint32_t block_size, dim;
  bool is_plain; /* f32, f16 or bf16, and no recent rows */
  bool merges;
  kvevict_dtype dtype;
  void* workspace;
  size_t workspace_bytes;
  uint8_t* memory; /* the blocks' memory with guards; NULL: the cache's own */
  size_t memory_bytes;
  uint32_t n_sequences;
  test_pooled sequences[TEST_POOL_MOST];
  uint32_t n_short;   /* calls that found too few blocks */
  uint32_t n_evicted; /* layers that lost tokens */
} test_pool;

/* Draws elements and maybe memory of its own. Heads of unlike lengths, and
 * merging, need plain rows. */
void test_pool_begin(test_pool* s, test_random* random, const char* policy,
                     bool is_plain);
void test_pool_end(test_pool* s);

/* Makes the cache anew, before sequences are added. */
void test_pool_resize(test_pool* s, uint32_t block_size, uint32_t n_blocks);

test_pooled* test_pool_add(test_pool* s);
test_pooled* test_pool_fork(test_pool* s, const test_pooled* from);
void test_pool_remove(test_pool* s, uint32_t i);

/* Append makes room for 1 .. most tokens if there are blocks, and writes their
 * rows. The others overwrite rows and truncate. */
void test_pool_append(test_pool* s, test_pooled* a, uint32_t most);
void test_pool_overwrite(test_pool* s, test_pooled* a);
void test_pool_trim(test_pool* s, test_pooled* a);

/* Evicts those of the first n sequences that are chosen in one call. */
void test_pool_evict(test_pool* s, const bool* chosen);

kvevict_paged_cache_usage test_pool_usage(const test_pool* s);

/* The slots that a head holds. */
uint32_t test_pool_stored(const test_pooled* a, uint32_t layer, uint32_t head);

kvevict_view test_pool_view(const test_pooled* a, uint32_t layer);

/* Checks every invariant after an operation. */
void test_pool_check(const test_pool* s);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_POOL_H_ */
