/* Contexts for every SIMD target of this CPU, on one to four threads. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_CONTEXTS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_CONTEXTS_H_

#include <stdbool.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TEST_MOST_THREADS = 4 };

typedef struct test_any_context {
  /* These live as long as the process: any of the others, which differ in threads. */
  kvevict_context *context, *of_threads[TEST_MOST_THREADS];
  const char* simd;
  bool is_fused; /* it multiplies and adds at once */
} test_any_context;

/* Draws one of the targets, or of those that KVEVICT_TEST_TARGETS names, as "SVE2_128
 * SVE": emulated CPUs are slow. */
test_any_context test_draw_context(test_random* random);

/* Destroys them. */
void test_forget_contexts(void);

/* Whether this target multiplies and adds at once. */
bool test_is_fused(const char* simd);

#ifdef __cplusplus
}
#endif

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_CONTEXTS_H_ */
