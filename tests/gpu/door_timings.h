// How fast signals, attention and steps of decoding are on a GPU, through the doors.
#ifndef KVEVICT_TESTS_GPU_DOOR_TIMINGS_H_
#define KVEVICT_TESTS_GPU_DOOR_TIMINGS_H_

#include <nlohmann/json.hpp>

#include "tests/gpu/bench.h"
#include "tests/gpu/stopwatch.h"

namespace kvevict::gpu {

// Adds a row for each, named after the workload.
void TimeDoors(const Gpu& gpu, const Effort& effort, const Stopwatch& watch,
               const char* name, const Workload& w, const Limits& limits,
               nlohmann::json* rows);

}  // namespace kvevict::gpu

#endif  // KVEVICT_TESTS_GPU_DOOR_TIMINGS_H_
