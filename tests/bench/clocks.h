// Time on both clocks, on one thread or several.
#ifndef KVEVICT_TESTS_BENCH_CLOCKS_H_
#define KVEVICT_TESTS_BENCH_CLOCKS_H_

#include <time.h>

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace kvevict::bench {

inline double Now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Timing {
  double wall = 0.0;  // seconds
  double cpu = 0.0;   // seconds, summed over the threads
};

// Runs item(i, worker) for i in [0, n_items) on n_threads threads. Worker w has the
// items w, w + n_threads, ... CPU time is the workers' alone, without starting them.
inline Timing TimeItems(uint32_t n_threads, uint32_t n_items,
                        const std::function<void(uint32_t, uint32_t)>& item) {
  std::vector<double> cpu(n_threads);
  const auto work = [&](uint32_t worker) {
    const double begin = Now(CLOCK_THREAD_CPUTIME_ID);
    for (uint32_t i = worker; i < n_items; i += n_threads) item(i, worker);
    cpu[worker] = Now(CLOCK_THREAD_CPUTIME_ID) - begin;
  };
  const double begin = Now(CLOCK_MONOTONIC);
  std::vector<std::thread> threads;
  for (uint32_t w = 1; w < n_threads; ++w) threads.emplace_back(work, w);
  work(0);
  for (std::thread& thread : threads) thread.join();
  Timing timing;
  timing.wall = Now(CLOCK_MONOTONIC) - begin;
  for (double seconds : cpu) timing.cpu += seconds;
  return timing;
}

// The calling thread's time for one call, measured over calls that fill min_seconds.
inline Timing TimeCalls(const std::function<void()>& call,
                        double min_seconds = 0.0) {
  const double wall = Now(CLOCK_MONOTONIC);
  const double cpu = Now(CLOCK_THREAD_CPUTIME_ID);
  uint64_t n_calls = 0;
  double passed;
  do {
    call();
    ++n_calls;
    passed = Now(CLOCK_THREAD_CPUTIME_ID) - cpu;
  } while (passed < min_seconds);
  const double n = static_cast<double>(n_calls);
  return {(Now(CLOCK_MONOTONIC) - wall) / n, passed / n};
}

}  // namespace kvevict::bench

#endif  // KVEVICT_TESTS_BENCH_CLOCKS_H_
