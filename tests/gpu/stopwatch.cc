#include "tests/gpu/stopwatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace kvevict::gpu {

Spread Stopwatch::Repeat(const std::function<double()>& run) const {
  std::vector<double> ms(n_runs_);
  for (double& m : ms) {
    Lead();
    m = run();
  }
  std::sort(ms.begin(), ms.end());
  return {ms[ms.size() / 2], ms.front(), ms.back()};
}

void Stopwatch::Lead() const {
  Check(gpu_.driver(),
        gpu_.driver().cuMemcpyDtoDAsync(to_.address(), from_.address(),
                                        to_.n_bytes(), gpu_.stream()),
        "cuMemcpyDtoDAsync");
}

Spread Stopwatch::Measure(const std::function<void()>& work,
                          const std::function<void()>& prepare) const {
  const Graph graph(gpu_, work);
  prepare();
  graph.Launch();
  return Repeat([&] {
    prepare();
    return gpu_.Time([&] { graph.Launch(); });
  });
}

Spread Stopwatch::MeasureQueued(const std::function<void()>& work,
                                const std::function<void()>& prepare) const {
  prepare();
  work();
  return Repeat([&] {
    prepare();
    return gpu_.Time(work);
  });
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
