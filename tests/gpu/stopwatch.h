// Times work on a stream, and stores the times.
#ifndef KVEVICT_TESTS_GPU_STOPWATCH_H_
#define KVEVICT_TESTS_GPU_STOPWATCH_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/gpu/checks.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// Milliseconds.
struct Spread {
  double median;
  double least;
  double most;
};

Spread SpreadOf(std::vector<double> values);

class Stopwatch {
 public:
  Stopwatch(const Gpu& gpu, const Effort& effort)
      : gpu_(gpu),
        from_(gpu, effort.full ? kLeadBytes : 256),
        to_(gpu, from_.n_bytes()) {}

  // Queues an untimed copy: the GPU is busy while the work is queued, and none of its
  // input is in the L2 cache.
  void Lead() const;

 private:
  static constexpr size_t kLeadBytes = size_t{512} << 20;  // 0.2 ms on an H200

  const Gpu& gpu_;
  const Buffer from_;
  const Buffer to_;
};

// The limits of the machine, measured just before.
struct Limits {
  double copy;    // bytes read and written per second, by the driver's own copy
  double matrix;  // bf16 FLOPs per second, by mma.sync
};
Limits MeasureLimits(const Gpu& gpu, const Effort& effort);

// Prints the row as well.
void AddRow(nlohmann::json* rows, const std::string& name, const Spread& ms,
            uint64_t bytes, uint64_t flops, const Limits& limits);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_STOPWATCH_H_
