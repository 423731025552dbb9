// Control of the shim driver, for tests that link libkvevict_shim_cuda.so and
// give its path to the library as that of libcuda.
//
// It runs kernels as C++ on fibers (tests/rig/simt), each when it is queued or when
// its graph is launched. The mock driver checks the order on streams and misuse.
// Device memory is the process's own, every allocation of its exact size, so that
// the sanitizers watch what kernels do to it. The fake libnvrtc belongs to it: its
// "cubin" names the file and its constants, and the driver has them compiled by the
// tests' compiler.
#ifndef KVEVICT_TESTS_RIG_SHIM_SHIM_H_
#define KVEVICT_TESTS_RIG_SHIM_SHIM_H_

#include <cstdint>

#include "tests/rig/simt/simt.h"

#define KVEVICT_SHIM_CONTROL __attribute__((visibility("default")))

namespace kvevict::shim {

// Launches run like this from now on.
KVEVICT_SHIM_CONTROL void Schedule(const simt::Options& options);

// Kernels that have run, by name; "": all.
KVEVICT_SHIM_CONTROL uint64_t Launches(const char* kernel);

// The number of things allocated or created and not yet freed.
KVEVICT_SHIM_CONTROL uint64_t Leaks();

}  // namespace kvevict::shim

#endif  // KVEVICT_TESTS_RIG_SHIM_SHIM_H_
