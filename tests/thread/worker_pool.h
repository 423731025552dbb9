// A parallel hook with real threads, callable from several threads at once.
#ifndef KVEVICT_TESTS_THREAD_WORKER_POOL_H_
#define KVEVICT_TESTS_THREAD_WORKER_POOL_H_

#include <cstdint>

#include "kvevict/kvevict.h"

namespace kvevict {

// A kvevict_parallel_fn whose user_data is a pointer to the number of threads. Starts
// them afresh in every call: slow, and with nothing shared between calls.
void RunInThreads(uint32_t n_items, kvevict_task_fn run, void* task,
                  void* n_threads);

// A context on the CPU that runs its work like that; n_threads outlives it.
kvevict_context* NewContext(uint32_t* n_threads);

}  // namespace kvevict

#endif  // KVEVICT_TESTS_THREAD_WORKER_POOL_H_
