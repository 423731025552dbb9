// Launch shapes of attention.cu.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_H_
#define KVEVICT_CUDA_KERNELS_ATTENTION_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kAttendThreads = 256;
// Query rows of a block, and slots that meet them at a time.
constexpr uint32_t kAttendRows = 16;
constexpr uint32_t kAttendSlots = 64;
// Elements of rows that are there at a time, and those of values that a block gathers.
constexpr uint32_t kAttendChunk = 32;
constexpr uint32_t kAttendValues = 128;
constexpr uint32_t kAttendFinishThreads = 128;

// Floats of a row's state.
constexpr uint32_t AttendStateFloats(uint32_t v_dim) { return 2 + v_dim; }

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_H_
