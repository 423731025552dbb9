#include "tests/gpu/stopwatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/gpu/matrix_rate.h"

namespace kvevict::gpu {

namespace {

// Bytes read and written per second by the driver's own copy.
double CopyRate(const Gpu& gpu, const Effort& effort) {
  const Stopwatch watch(gpu, effort);
  const size_t n_bytes = effort.full ? size_t{1} << 30 : size_t{1} << 16;
  const Buffer from(gpu, n_bytes);
  const Buffer to(gpu, n_bytes);
  std::vector<double> ms(effort.full ? 22 : 2);
  for (double& m : ms) {
    watch.Lead();
    m = gpu.Time([&] {
      Check(gpu.driver(),
            gpu.driver().cuMemcpyDtoDAsync(to.address(), from.address(),
                                           n_bytes, gpu.stream()),
            "cuMemcpyDtoDAsync");
    });
  }
  ms.erase(ms.begin());  // the first one touches memory
  return 2.0 * static_cast<double>(n_bytes) / (SpreadOf(ms).median * 1e-3);
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

Limits MeasureLimits(const Gpu& gpu, const Effort& effort) {
  const Limits limits = {CopyRate(gpu, effort), MatrixRate(gpu, effort.full)};
  fmt::print("copy {:.1f} GB/s, read and written; mma.sync {:.1f} TFLOP/s\n",
             limits.copy * 1e-9, limits.matrix * 1e-12);
  return limits;
}

void Stopwatch::Lead() const {
  Check(gpu_.driver(),
        gpu_.driver().cuMemcpyDtoDAsync(to_.address(), from_.address(),
                                        to_.n_bytes(), gpu_.stream()),
        "cuMemcpyDtoDAsync");
}

void AddRow(nlohmann::json* rows, const std::string& name, const Spread& ms,
            uint64_t bytes, uint64_t flops, const Limits& limits) {
  const double seconds = ms.median * 1e-3;
  const double rate = static_cast<double>(bytes) / seconds;
  const double flop_rate = static_cast<double>(flops) / seconds;
  rows->push_back({{"name", name},
                   {"ms", ms.median},
                   {"ms_least", ms.least},
                   {"ms_most", ms.most},
                   {"bytes", bytes},
                   {"bytes_per_s", rate},
                   {"of_copy_rate", rate / limits.copy},
                   {"flops", flops},
                   {"flops_per_s", flop_rate},
                   {"of_matrix_rate", flop_rate / limits.matrix}});
  fmt::print(
      "{:<44} {:9.4f} ms {:8.1f} GB/s ({:.2f} of copy) {:7.1f} TFLOP/s ({:.2f} "
      "of matrix)\n",
      name, ms.median, rate * 1e-9, rate / limits.copy, flop_rate * 1e-12,
      flop_rate / limits.matrix);
  std::fflush(stdout);
}

}  // namespace kvevict::gpu
