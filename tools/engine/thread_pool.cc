#include "tools/engine/thread_pool.h"

#include <algorithm>
#include <chrono>

namespace kvevict::tools {
namespace {

// About the time the serial parts between two loops of a layer take; waking a
// sleeping thread costs more.
constexpr std::chrono::microseconds kSpinTime{20};

uint32_t ThreadsOrAll(uint32_t n_threads) {
  if (n_threads > 0) return n_threads;
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(uint32_t n_threads) {
  const uint32_t n = ThreadsOrAll(n_threads);
  threads_.reserve(n - 1);
  for (uint32_t worker = 1; worker < n; ++worker) {
    threads_.emplace_back([this, worker] { WorkerMain(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(uint32_t n_items, kvevict_task_fn run, void* task,
                     void* user_data) {
  static_cast<ThreadPool*>(user_data)->RunJob({run, task, n_items});
}

void ThreadPool::RunJob(const Job& job) {
  if (job.n_items == 0) return;
  std::lock_guard one_loop(loop_mutex_);
  if (job.n_items == 1 || threads_.empty()) {
    for (uint32_t item = 0; item < job.n_items; ++item) {
      job.run(job.task, item, 0);
    }
    return;
  }
  bool sleepers;
  {
    std::lock_guard lock(mutex_);
    job_ = job;
    open_ = true;
    next_item_.store(0, std::memory_order_relaxed);
    n_jobs_.fetch_add(1, std::memory_order_release);
    sleepers = n_sleeping_ > 0;
  }
  if (sleepers) wake_.notify_all();
  TakeItems(job, 0);

  // All items are taken. Close the job, so that a worker that wakes only now
  // stays away instead of being waited for, and wait for those that joined.
  std::unique_lock lock(mutex_);
  open_ = false;
  idle_.wait(lock, [this] { return n_active_ == 0; });
}

void ThreadPool::TakeItems(const Job& job, uint32_t worker) {
  while (true) {
    const uint32_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= job.n_items) return;
    job.run(job.task, item, worker);
  }
}

void ThreadPool::WorkerMain(uint32_t worker) {
  uint64_t last_seen = 0;
  while (WaitForJob(last_seen)) {
    Job job;
    {
      std::lock_guard lock(mutex_);
      last_seen = n_jobs_.load(std::memory_order_relaxed);
      if (!open_) continue;
      job = job_;
      ++n_active_;
    }
    TakeItems(job, worker);
    std::lock_guard lock(mutex_);
    if (--n_active_ == 0) idle_.notify_one();
  }
}

bool ThreadPool::WaitForJob(uint64_t last_seen) {
  const auto news = [this, last_seen] {
    return n_jobs_.load(std::memory_order_acquire) != last_seen ||
           stop_.load(std::memory_order_relaxed);
  };
  const auto give_up = std::chrono::steady_clock::now() + kSpinTime;
  while (!news() && std::chrono::steady_clock::now() < give_up) {
  }
  if (!news()) {
    std::unique_lock lock(mutex_);
    ++n_sleeping_;
    wake_.wait(lock, news);
    --n_sleeping_;
  }
  return !stop_.load(std::memory_order_relaxed);
}

}  // namespace kvevict::tools
