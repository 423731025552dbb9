// Times graphs, and stores the times.
#ifndef KVEVICT_TESTS_GPU_STOPWATCH_H_
#define KVEVICT_TESTS_GPU_STOPWATCH_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/gpu/checks.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// Milliseconds.
struct Spread {
  double median;
  double least;
  double most;
};

class Stopwatch {
 public:
  Stopwatch(const Gpu& gpu, const Effort& effort)
      : gpu_(gpu),
        n_runs_(effort.full ? 21 : 1),
        from_(gpu, effort.full ? kLeadBytes : 256),
        to_(gpu, from_.n_bytes()) {}

  // Times launches of a graph of `work`. An untimed copy before each queues the
  // launch in time and clears the L2 cache; then `prepare` runs.
  Spread Measure(
      const std::function<void()>& work,
      const std::function<void()>& prepare = [] {}) const;
  // The same for work that is queued anew every time.
  Spread MeasureQueued(const std::function<void()>& work,
                       const std::function<void()>& prepare) const;
  // Queues the untimed copy.
  void Lead() const;

 private:
  static constexpr size_t kLeadBytes = size_t{512} << 20;  // 0.2 ms on an H200

  Spread Repeat(const std::function<double()>& run) const;

  const Gpu& gpu_;
  const int n_runs_;
  const Buffer from_;
  const Buffer to_;
};

// The limits of the machine, measured just before.
struct Limits {
  double copy;    // bytes read and written per second, by the driver's own copy
  double matrix;  // bf16 FLOPs per second, by mma.sync
};

// Prints the row as well.
void AddRow(nlohmann::json* rows, const std::string& name, const Spread& ms,
            uint64_t bytes, uint64_t flops, const Limits& limits);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_STOPWATCH_H_
