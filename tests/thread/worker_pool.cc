#include "tests/thread/worker_pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/thread/check.h"

namespace kvevict {

void RunInThreads(uint32_t n_items, kvevict_task_fn run, void* task,
                  void* n_threads) {
  std::atomic<uint32_t> next{0};
  const auto work = [&](uint32_t worker) {
    for (uint32_t item = next++; item < n_items; item = next++) {
      run(task, item, worker);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t w = 1; w < *static_cast<uint32_t*>(n_threads); ++w) {
    threads.emplace_back(work, w);
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

kvevict_context* NewContext(uint32_t* n_threads) {
  kvevict_context_options options = KVEVICT_CONTEXT_OPTIONS_INIT;
  options.n_threads = *n_threads;
  options.parallel = RunInThreads;
  options.parallel_user_data = n_threads;
  kvevict_context* context = nullptr;
  CHECK_OK(kvevict_context_create(&options, &context));
  return context;
}

}  // namespace kvevict
