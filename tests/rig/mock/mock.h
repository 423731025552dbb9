// Control of the mock driver, for tests that link libkvevict_mock_cuda.so and
// give its path to the library as that of libcuda.
//
// The mock takes PTX (cuModuleLoadData, cuLibraryLoadData), runs it on the CPU
// (tests/rig/ptx) and keeps device memory where no host pointer reaches. Work
// on streams waits until somebody synchronises, in the order of the calls.
// Misuse gets the driver's result and is noted as a problem.
#ifndef KVEVICT_TESTS_RIG_MOCK_MOCK_H_
#define KVEVICT_TESTS_RIG_MOCK_MOCK_H_

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/rig/ptx/counters.h"
#include "tests/rig/tensor_core.h"

#define KVEVICT_MOCK_CONTROL __attribute__((visibility("default")))

namespace kvevict::mock {

struct Settings {
  int n_devices = 1;
  // A GPU that NVRTC has no machine code for, so that the library makes PTX of
  // the architecture below: 91 gives compute_90, 71 compute_70.
  int compute_capability = 91;
  int driver_version = 12040;  // CUDA 12.4
  uint64_t memory_bytes = uint64_t{8} << 30;

  // The seed of kernels, see ptx/launch.h.
  uint64_t seed = 1;
  uint32_t resident_blocks = 4;
  rig::TensorCore tensor_core = rig::kToNearest;
  // Returns the text to read in the place of a module's.
  std::string (*instead_of)(const std::string& ptx) = nullptr;

  // Device memory is the process's own, unchecked; work runs when it is queued; any
  // stream exists, and a thread's context is the primary one from the start. For
  // programs that cannot link this file: set by the variable of this name.
  bool host_memory = std::getenv("KVEVICT_MOCK_HOST_MEMORY") != nullptr;
};

// Forgets everything: contexts with all that belongs to them, failures, counts,
// problems. No other thread may have a context of the mock current. What the
// process has initialised stays initialised.
KVEVICT_MOCK_CONTROL void Reset(const Settings& settings = {});

// ---- Failures on demand ----

// The n-th call of a function from now on (1: the next) returns `result` and does
// nothing else. Names as exported: "cuMemAlloc_v2", "cuInit". A result that
// ends a context (700, 719 ...) makes all later calls in that context return it.
KVEVICT_MOCK_CONTROL void FailCall(const char* function, uint64_t n,
                                   int result);
// The n-th kernel to run from now on fails with `result`, when it runs: the
// call that waits for it says so.
KVEVICT_MOCK_CONTROL void FailKernel(uint64_t n, int result);

// Forgets the failures that have not come yet.
KVEVICT_MOCK_CONTROL void ForgetFailures();

// ---- What happened ----

// Calls of a function since Reset().
KVEVICT_MOCK_CONTROL uint64_t Calls(const char* function);
// Calls that wait for the device: synchronising and synchronous ones.
KVEVICT_MOCK_CONTROL uint64_t Waits();
// Kernels that have run, by name; "": all.
KVEVICT_MOCK_CONTROL uint64_t Launches(const char* kernel);
// The work that waits on streams.
KVEVICT_MOCK_CONTROL uint64_t Pending();

// Misuse and faults, a sentence each, in order.
KVEVICT_MOCK_CONTROL std::vector<std::string> Problems();
// Forgets them, for tests that expect one.
KVEVICT_MOCK_CONTROL void ClearProblems();
// Lists all that was made and not destroyed: "2 allocations", "1 stream" ...
KVEVICT_MOCK_CONTROL std::vector<std::string> Leaks();

}  // namespace kvevict::mock

#endif  // KVEVICT_TESTS_RIG_MOCK_MOCK_H_
