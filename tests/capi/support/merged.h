/* The rows of a head after merging. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/cache.h"

/* Fails the test unless slots [0, n_keep) of a head of `got` hold the listed rows
 * of `before`, merged as the oracle says. Rows that merge nothing equal those of
 * `moved`, compacted without merging. A fraction of 0 is 1. Returns false without
 * comparing if f32 may decide otherwise than the oracle. */
bool test_expect_merged(const test_cache* before, const test_cache* got,
                        const test_cache* moved, uint32_t head,
                        uint32_t n_tokens, const int32_t* keep, uint32_t n_keep,
                        kvevict_merge merge, double threshold, double fraction,
                        const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_ */
