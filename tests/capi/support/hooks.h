/* Hooks for contexts: an allocator that keeps accounts and can run dry, and a
 * runner that does items in a shuffled order on shuffled workers. */
#ifndef KVEVICT_TESTS_CAPI_SUPPORT_HOOKS_H_
#define KVEVICT_TESTS_CAPI_SUPPORT_HOOKS_H_

#include <stddef.h>
#include <stdint.h>

#include "kvevict/kvevict.h"
#include "tests/capi/support/random.h"

enum { TEST_MAX_LIVE = 1024 };

typedef struct test_allocator {
  struct {
    kvevict_alloc_fn alloc;
    kvevict_free_fn free;
  } hooks;
  struct {
    void* memory;
    size_t n_bytes;
    size_t alignment;
  } live[TEST_MAX_LIVE];
  uint32_t n_live;
  uint32_t n_allocs; /* calls so far, failed ones included */
  uint32_t n_frees;
  uint32_t fail_at;      /* this call (from 1) and later ones fail; 0: none */
  uint32_t n_complaints; /* wrong sizes, alignments, pointers */
} test_allocator;

void test_allocator_init(test_allocator* allocator);

/* Initialises the allocator; sets alloc, free and alloc_user_data. */
void test_allocator_install(test_allocator* allocator,
                            kvevict_context_options* options);

typedef struct test_runner {
  test_random random;
  uint32_t n_threads;
  uint32_t n_calls;
} test_runner;

/* Sets n_threads, parallel and parallel_user_data; 1 thread means no runner. */
void test_runner_install(test_runner* runner, uint32_t n_threads,
                         kvevict_context_options* options);

#endif /* KVEVICT_TESTS_CAPI_SUPPORT_HOOKS_H_ */
