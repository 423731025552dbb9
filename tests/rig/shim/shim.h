// Control of the shim driver, for tests that link libkvevict_shim_cuda.so and
// give its path to the library as that of libcuda.
//
// It runs the kernels as C++ on fibers (tests/rig/simt), each when it is queued or when
// its graph is launched: order on streams and misuse are the mock driver's
// business. Device memory is the process's own, every allocation of its exact size,
// so that the sanitizers watch what the kernels do to it. With it goes the fake
// libnvrtc, whose "cubin" names the file and its constants; the driver has them
// compiled by the compiler of the tests.
#ifndef KVEVICT_TESTS_RIG_SHIM_SHIM_H_
#define KVEVICT_TESTS_RIG_SHIM_SHIM_H_

#include <cstdint>

#include "tests/rig/simt/simt.h"

#define KVEVICT_SHIM_CONTROL __attribute__((visibility("default")))

namespace kvevict::shim {

// How launches run from now on.
KVEVICT_SHIM_CONTROL void Schedule(const simt::Options& options);

// Kernels that have run, by name; "": all.
KVEVICT_SHIM_CONTROL uint64_t Launches(const char* kernel);

// What has been allocated or created and not yet freed.
KVEVICT_SHIM_CONTROL uint64_t Leaks();

}  // namespace kvevict::shim

#endif  // KVEVICT_TESTS_RIG_SHIM_SHIM_H_
