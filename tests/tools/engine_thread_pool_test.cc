// Every item runs once, workers do not collide, and the pool serves several
// threads. This is a plain program, so that it runs under the thread sanitizer.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tools/engine/thread_pool.h"

namespace kvevict::tools {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// The counter is not atomic: the sanitizer finds a race, and the test a lost count.
void RunsEveryItemOnce(ThreadPool& pool, uint32_t n_items) {
  std::vector<uint32_t> runs(n_items);
  std::vector<uint64_t> per_worker(pool.n_threads());
  pool.For(n_items, [&](uint32_t item, uint32_t worker) {
    ++runs[item];
    ++per_worker.at(worker);
  });
  uint64_t total = 0;
  for (uint64_t n : per_worker) total += n;
  Require(total == n_items, "the workers' items add up");
  for (uint32_t n : runs) Require(n == 1, "an item ran once");
}

void ManyShortLoops() {
  for (uint32_t n_threads : {1u, 2u, 3u, 8u}) {
    ThreadPool pool(n_threads);
    Require(pool.n_threads() == n_threads, "as many threads as asked for");
    for (uint32_t n_items : {0u, 1u, 2u, 7u, 1000u}) {
      for (int i = 0; i < 50; ++i) RunsEveryItemOnce(pool, n_items);
    }
  }
}

// Workers go to sleep after some microseconds and must wake again.
void LoopsAfterPauses() {
  ThreadPool pool(3);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    RunsEveryItemOnce(pool, 64);
  }
}

// Each of two items waits until the other has begun, so two threads must work on
// the loop.
void WorksInParallel() {
  ThreadPool pool(2);
  for (int i = 0; i < 20; ++i) {
    std::atomic<uint32_t> n_begun = 0;
    pool.For(2, [&](uint32_t, uint32_t) {
      ++n_begun;
      while (n_begun < 2) std::this_thread::yield();
    });
  }
}

void ServesSeveralThreads() {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&pool] {
      for (int i = 0; i < 50; ++i) RunsEveryItemOnce(pool, 20);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Calls it as the library does.
void RunsAsHook() {
  ThreadPool pool(2);
  std::vector<uint32_t> runs(100);
  const kvevict_parallel_fn hook = &ThreadPool::Run;
  hook(
      100,
      [](void* task, uint32_t item, uint32_t) {
        ++(*static_cast<std::vector<uint32_t>*>(task))[item];
      },
      &runs, &pool);
  for (uint32_t n : runs) Require(n == 1, "the hook ran every item once");
}

}  // namespace
}  // namespace kvevict::tools

int main() {
  kvevict::tools::ManyShortLoops();
  kvevict::tools::LoopsAfterPauses();
  kvevict::tools::WorksInParallel();
  kvevict::tools::ServesSeveralThreads();
  kvevict::tools::RunsAsHook();
  return 0;
}
