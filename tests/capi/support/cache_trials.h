/* Caches on which everything that moves rows is tried. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_CACHE_TRIALS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_CACHE_TRIALS_H_

#include "tests/capi/support/cache.h"
#include "tests/capi/support/contexts.h"

typedef struct test_cache_trial {
  test_cache* cache; /* of any spec, with random rows */
  uint32_t n_tokens; /* held, at least 1 */
  uint32_t n_lists;  /* 1 or a list per KV head */
  const char* what;  /* for messages */
} test_cache_trial;

typedef void test_try_cache(const test_any_context* with,
                            const test_cache_trial* trial, test_random* random);

/* Calls `try` with a cache of this spec, and any SIMD target and number of threads. */
void test_try_spec(const test_cache_spec* spec, test_random* random,
                   test_try_cache* try);

/* Tries every layout and every pair of dtypes, with odd sizes. */
void test_try_layouts_and_dtypes(int n_rounds, test_random* random,
                                 test_try_cache* try);

/* Tries quantized K and V. */
void test_try_quantized(test_random* random, test_try_cache* try);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_CACHE_TRIALS_H_ */
