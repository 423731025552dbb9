/* A KIVI-style cache: groups of tokens have scales and minima per element, and the
 * last rows are not quantized. The oracle says what its rows stand for. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"

enum { TEST_GROUPED_BLOCKS = 96 };

typedef struct test_grouped_spec {
  uint32_t n_heads, dim, capacity, group, block_size; /* 0: contiguous */
  bool by_heads, groups_values, has_recent;
  kvevict_dtype dtype, scale, minimum, recent;
} test_grouped_spec;

typedef struct test_grouped {
  test_grouped_spec spec;
  kvevict_view view;
  kvevict_plane companions[6];
  int32_t table[TEST_GROUPED_BLOCKS];
  uint8_t* memory;
  size_t n_bytes;
  float* rows[2]; /* what K and V stand for, [n_heads, capacity, dim] */
} test_grouped;

test_grouped_spec test_grouped_draw(test_random* random);
/* Draws all bytes at random. */
test_grouped* test_grouped_create(const test_grouped_spec* spec,
                                  test_random* random);
test_grouped* test_grouped_clone(const test_grouped* cache);
void test_grouped_destroy(test_grouped* cache);

/* The number of n slots that are quantized. */
uint32_t test_grouped_coded(const test_grouped* cache, uint32_t n);

/* The row of K (0) or V (1) of a slot. */
float* test_grouped_row(const test_grouped* cache, int plane, uint32_t head,
                        uint32_t slot);

/* Stores [n, dim] numbers as rows [first, first + n) of a head by the oracle: as
 * bytes, and as what they stand for. */
void test_grouped_store(test_grouped* cache, int plane, uint32_t head,
                        uint32_t first, uint32_t n, const float* from);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_GROUPED_H_ */
