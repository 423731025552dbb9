// A driver in this process. Its functions note all calls.
#ifndef KVEVICT_TESTS_RIG_FAKES_FAKE_GPU_H_
#define KVEVICT_TESTS_RIG_FAKES_FAKE_GPU_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace kvevict::cuda {

struct FakeGpu {
  int sm = 90;

  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int n_loads = 0;
  std::vector<std::string> images;    // loaded images, as texts
  std::set<std::string> live_images;  // those not unloaded yet
  int max_shared = 0;
  int n_functions_loaded = 0;
  // Loads that a capture forbids, repeated loads and the like.
  int n_misuses = 0;
};

// FakeDriver() drives this one. Loads come one at a time.
extern FakeGpu gpu;

// Has the functions that loading kernels needs, of CUDA 12, or of CUDA 11
// without libraries.
Driver FakeDriver(bool with_libraries);

// A function's handle contains its image, counted from 1, and its name.
template <typename Handle>
Handle HandleOf(uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_RIG_FAKES_FAKE_GPU_H_
