// Finds the GPUs of this machine, and the reason if CUDA cannot be used.
#ifndef KVEVICT_CUDA_DEVICE_H_
#define KVEVICT_CUDA_DEVICE_H_

#include "core/status.h"
#include "cuda/driver.h"
#include "kvevict/experimental.h"

namespace kvevict::cuda {

// Paths of the libraries; null or empty: where the system finds them.
struct LibraryPaths {
  const char* driver = nullptr;
  const char* nvrtc = nullptr;
};

struct Device {
  CUdevice handle = 0;
  int sm = 0;  // 80 is compute capability 8.0
  char name[96] = "";
};

// 7.0: earlier GPUs have no independent thread scheduling.
inline constexpr int kOldestSm = 70;

// Finds the GPU with this number, even if it is too old. INVALID_ARGUMENT if
// there is none.
Status GetDevice(const Driver& driver, int ordinal, Device* out);

// UNAVAILABLE if the GPU is too old.
Status CheckDevice(const Device& device, int ordinal);

// Fills what kvevict_gpu_at() returns. INVALID_ARGUMENT for an index past the
// last GPU, UNAVAILABLE if there is no driver or no GPU.
Status DescribeGpu(const LibraryPaths& paths, uint32_t index,
                   kvevict_gpu_info* out);

// Checks that contexts can be created on some GPU here: there are a driver, a
// GPU that is new enough and a libnvrtc that compiles for it. UNAVAILABLE with
// the reason otherwise.
Status CheckAvailable(const LibraryPaths& paths);

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_DEVICE_H_
