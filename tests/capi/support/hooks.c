#include "tests/capi/support/hooks.h"

#include <stdlib.h>
#include <string.h>

static void* Alloc(size_t n_bytes, size_t alignment, void* user_data) {
  test_allocator* a = user_data;
  a->n_allocs += 1;
  if (n_bytes == 0 || alignment == 0 || alignment > 256 ||
      (alignment & (alignment - 1)) != 0) {
    a->n_complaints += 1;
  }
  if (a->fail_at != 0 && a->n_allocs >= a->fail_at) return NULL;
  if (a->n_live == TEST_MAX_LIVE) abort();
  void* memory = NULL;
  /* The memory is aligned as asked and no better, so that a wrong request fails. */
  if (posix_memalign(&memory, 2 * alignment < 16 ? 16 : 2 * alignment,
                     n_bytes + alignment) != 0) {
    abort();
  }
  memset(memory, 0xCD, n_bytes + alignment);
  memory = (char*)memory + alignment;
  a->live[a->n_live].memory = memory;
  a->live[a->n_live].n_bytes = n_bytes;
  a->live[a->n_live].alignment = alignment;
  a->n_live += 1;
  return memory;
}

static void Free(void* memory, size_t n_bytes, size_t alignment,
                 void* user_data) {
  test_allocator* a = user_data;
  a->n_frees += 1;
  for (uint32_t i = 0; i < a->n_live; ++i) {
    if (a->live[i].memory != memory) continue;
    if (a->live[i].n_bytes != n_bytes || a->live[i].alignment != alignment) {
      a->n_complaints += 1;
    }
    free((char*)memory - a->live[i].alignment);
    a->live[i] = a->live[--a->n_live];
    return;
  }
  a->n_complaints += 1;
}

void test_allocator_init(test_allocator* allocator) {
  memset(allocator, 0, sizeof(*allocator));
  allocator->hooks.alloc = Alloc;
  allocator->hooks.free = Free;
}

void test_allocator_install(test_allocator* allocator,
                            kvevict_context_options* options) {
  test_allocator_init(allocator);
  options->alloc = allocator->hooks.alloc;
  options->free = allocator->hooks.free;
  options->alloc_user_data = allocator;
}

static void RunShuffled(uint32_t n_items, kvevict_task_fn run, void* task,
                        void* user_data) {
  test_runner* runner = user_data;
  enum { kMaxItems = 4096 };
  static _Thread_local int32_t order[kMaxItems];
  runner->n_calls += 1;
  if (n_items > kMaxItems) abort();
  test_random_permutation(&runner->random, order, n_items);
  for (uint32_t i = 0; i < n_items; ++i) {
    run(task, (uint32_t)order[i],
        test_random_below(&runner->random, runner->n_threads));
  }
}

void test_runner_install(test_runner* runner, uint32_t n_threads,
                         kvevict_context_options* options) {
  runner->random.state = n_threads;
  runner->n_threads = n_threads;
  runner->n_calls = 0;
  options->n_threads = n_threads;
  options->parallel = n_threads > 1 ? RunShuffled : NULL;
  options->parallel_user_data = runner;
}
