/* What merging must leave of a head's rows. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_

#include <stdbool.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/cache.h"

/* Fails the test unless slots [0, n_keep) of a head of `got` hold the rows of `before`
 * that are listed, merged as the oracle says; rows that merge nothing are those of
 * `moved`, which was compacted without. A fraction of 0 is 1. False, and nothing is
 * compared, where f32 may decide otherwise than the oracle. */
bool test_expect_merged(const test_cache* before, const test_cache* got,
                        const test_cache* moved, uint32_t head,
                        uint32_t n_tokens, const int32_t* keep, uint32_t n_keep,
                        kvevict_merge merge, double threshold, double fraction,
                        const char* what);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_MERGED_H_ */
