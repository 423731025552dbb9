// How fast the operations are on a GPU, all layers of a model in each.
#ifndef KVEVICT_TESTS_GPU_TIMINGS_H_
#define KVEVICT_TESTS_GPU_TIMINGS_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/gpu/checks.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/stopwatch.h"

namespace kvevict::gpu {

// Adds a row per operation of workloads with `named` in their name to *out: milliseconds
// (median, least, most of graph launches, by events), bytes and FLOPs counted, their rate,
// and the machine's copy rate. `save` runs after each row, so that figures outlive a
// failure.
void TimeKernels(const Gpu& gpu, const Effort& effort, const std::string& named,
                 const std::function<void()>& save, nlohmann::json* out);

// What rows are measured against.
Limits MeasureLimits(const Gpu& gpu, const Effort& effort);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_TIMINGS_H_
