// How fast the operations are on a GPU, all layers of a model in each.
#ifndef KVEVICT_TESTS_GPU_TIMINGS_H_
#define KVEVICT_TESTS_GPU_TIMINGS_H_

#include <nlohmann/json.hpp>

#include "tests/gpu/checks.h"
#include "tests/gpu/gpu.h"

namespace kvevict::gpu {

// A row per operation: milliseconds (median, least, most of graph launches, by
// events), bytes and FLOPs counted, and their rate; and the machine's copy rate.
nlohmann::json TimeKernels(const Gpu& gpu, const Effort& effort);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_TIMINGS_H_
