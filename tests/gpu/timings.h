// How fast the operations are on a GPU, all layers of a model in each.
#ifndef KVEVICT_TESTS_GPU_TIMINGS_H_
#define KVEVICT_TESTS_GPU_TIMINGS_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/gpu/checks.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// Of workloads with `named` in their name, a row per operation: milliseconds (median, least, most of graph launches, by
// events), bytes and FLOPs counted, and their rate; and the machine's copy rate.
// Goes into *out row by row, with a call of `save` after each, so that what was
// measured outlives a failure.
void TimeKernels(const Gpu& gpu, const Effort& effort, const std::string& named,
                 const std::function<void()>& save, nlohmann::json* out);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_TIMINGS_H_
