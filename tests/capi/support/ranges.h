/* Ranges of tokens with a rank. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_RANGES_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_RANGES_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"

enum { TEST_MOST_RANGES = 64 };

typedef struct test_ranges {
  kvevict_token_range of[TEST_MOST_RANGES];
  size_t n;
} test_ranges;

/* Draws up to `most` ranges, some empty, adjacent or beyond `bound`. Ranks lie
 * around 0 and some are extreme. */
test_ranges test_random_ranges(test_random* random, uint32_t most,
                               uint32_t bound);

/* The rank of a position. */
int32_t test_rank_of(const kvevict_token_range* ranges, size_t n,
                     uint32_t position);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_RANGES_H_ */
