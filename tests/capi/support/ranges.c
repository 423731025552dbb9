#include "tests/capi/support/ranges.h"

#include <stdlib.h>

static int Compare(const void* a, const void* b) {
  const uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
  return (x > y) - (x < y);
}

test_ranges test_random_ranges(test_random* random, uint32_t most,
                               uint32_t bound) {
  test_ranges ranges = {.n = test_random_below(random, most + 1)};
  uint32_t ends[2 * TEST_MOST_RANGES];
  for (size_t i = 0; i < 2 * ranges.n; ++i) {
    ends[i] = test_random_below(random, bound + bound / 4 + 2);
    if (test_random_below(random, 20) == 0) ends[i] = UINT32_MAX;
    /* It begins where the one before begins or ends. */
    if (i > 0 && test_random_below(random, 4) == 0) ends[i] = ends[i - 1];
  }
  qsort(ends, 2 * ranges.n, sizeof *ends, Compare);
  for (size_t i = 0; i < ranges.n; ++i) {
    kvevict_token_range* range = &ranges.of[i];
    *range = (kvevict_token_range)KVEVICT_TOKEN_RANGE_INIT;
    range->first = ends[2 * i];
    range->end = ends[2 * i + 1];
    range->rank = (int32_t)test_random_below(random, 7) - 3;
    if (test_random_below(random, 10) == 0) range->rank = INT32_MAX;
    if (test_random_below(random, 10) == 0) range->rank = INT32_MIN;
  }
  return ranges;
}

int32_t test_rank_of(const kvevict_token_range* ranges, size_t n,
                     uint32_t position) {
  for (size_t i = 0; i < n; ++i) {
    if (position >= ranges[i].first && position < ranges[i].end) {
      return ranges[i].rank;
    }
  }
  return 0;
}
