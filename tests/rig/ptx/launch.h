// Runs a kernel: all blocks of a grid, a few of them at a time, on this thread.
#ifndef KVEVICT_TESTS_RIG_PTX_LAUNCH_H_
#define KVEVICT_TESTS_RIG_PTX_LAUNCH_H_

#include <cstdint>
#include <span>

#include "tests/rig/ptx/counters.h"
#include "tests/rig/ptx/kernel.h"
#include "tests/rig/ptx/memory.h"
#include "tests/rig/tensor_core.h"

namespace kvevict::ptx {

struct Dimensions {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct LaunchShape {
  Dimensions grid;
  Dimensions block;
  uint32_t dynamic_shared_bytes = 0;
};

struct LaunchOptions {
  uint64_t seed = 1;  // for the order of blocks and threads
  // The blocks that take turns. A kernel whose blocks wait for others must work
  // with any number.
  uint32_t resident_blocks = 4;
  bool find_races = true;     // a data race is an error
  bool count_traffic = true;  // sectors and bank conflicts, which cost time
  rig::TensorCore tensor_core = rig::kToNearest;
  // After so many turns of waiting threads in a row, without a store by anyone,
  // a launch counts as stuck.
  uint64_t max_idle_turns = 1000000;
};

// `params` is the kernel's parameter block. Adds to the counters. Throws Error
// with kernel, line, block and thread when a thread does something forbidden.
void Launch(const Kernel& kernel, const LaunchShape& shape,
            std::span<const uint8_t> params, Memory& memory,
            const LaunchOptions& options, Counters& counters);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_LAUNCH_H_
