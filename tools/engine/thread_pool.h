// Worker threads for parallel loops, in the engine and inside the library.
#ifndef KVEVICT_TOOLS_ENGINE_THREAD_POOL_H_
#define KVEVICT_TOOLS_ENGINE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "kvevict/kvevict.h"

namespace kvevict::tools {

// The calling thread is worker 0 and works too. Between loops the others spin
// for some microseconds, so that the next loop of the same layer starts at
// once, and then sleep. Loops of several threads run one after the other. Loops
// do not nest.
class ThreadPool {
 public:
  // 0 means one per CPU.
  explicit ThreadPool(uint32_t n_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t n_threads() const {
    return static_cast<uint32_t>(threads_.size()) + 1;
  }

  // Calls body(item, worker) once for every item < n_items, worker <
  // n_threads(), and returns when all are done. No two calls with one worker
  // number overlap. The body must not throw.
  template <typename Body>
  void For(uint32_t n_items, Body&& body) {
    using B = std::remove_reference_t<Body>;
    Run(
        n_items,
        [](void* task, uint32_t item, uint32_t worker) {
          (*static_cast<B*>(task))(item, worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)), this);
  }

  // For() in the shape of kvevict_context_options::parallel; parallel_user_data
  // is the ThreadPool.
  static void Run(uint32_t n_items, kvevict_task_fn run, void* task,
                  void* user_data);

 private:
  struct Job {
    kvevict_task_fn run = nullptr;
    void* task = nullptr;
    uint32_t n_items = 0;
  };

  void RunJob(const Job& job);
  void WorkerMain(uint32_t worker);
  void TakeItems(const Job& job, uint32_t worker);
  bool WaitForJob(uint64_t last_seen);

  std::mutex loop_mutex_;  // one loop at a time
  std::mutex mutex_;       // guards what follows up to n_sleeping_
  std::condition_variable wake_;
  std::condition_variable idle_;
  Job job_;
  bool open_ = false;  // workers may still join job_
  uint32_t n_active_ = 0;
  uint32_t n_sleeping_ = 0;
  std::atomic<uint64_t> n_jobs_ = 0;  // spinning workers watch it
  std::atomic<uint32_t> next_item_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_THREAD_POOL_H_
