// Launch shapes of attention.cu.
#ifndef KVEVICT_CUDA_KERNELS_ATTENTION_H_
#define KVEVICT_CUDA_KERNELS_ATTENTION_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kAttendThreads = 256;
// Query rows of a block, and slots that they are multiplied with at a time.
constexpr uint32_t kAttendRows = 16;
constexpr uint32_t kAttendSlots = 64;
// Elements of rows in shared memory at a time, and elements of values that a
// block adds up.
constexpr uint32_t kAttendChunk = 32;
constexpr uint32_t kAttendValues = 128;
constexpr uint32_t kAttendFinishThreads = 128;

// attend_few: the most query rows of a KV head, elements of a row, and slots
// whose weights are in shared memory at a time.
constexpr uint32_t kFewRows = 8;
constexpr uint32_t kFewElements = 256;
constexpr uint32_t kFewSlots = 1024;
// Whether a thread has registers for one load of this many rows: never for u4,
// and for half as many rows with other codes.
constexpr bool HasFewLoads(int dtype, uint32_t n_rows) {
  return PerLoad(dtype) <= 16 && n_rows * PerLoad(dtype) <= 64;
}
// Whether keys and values have one dtype and loads of 16 bytes, up to 32 a row,
// and the sums of all warps fit where the weights were.
constexpr bool TakeFew(const AttendParams& p) {
  const uint32_t n_rows = p.n_queries * p.group;
  const uint32_t of_values = kFewSlots / (n_rows > kFewRows / 2 ? 8 : 4);
  const int dtype = static_cast<int>(p.keys.dtype);
  const uint32_t most =
      32 * PerLoad(dtype) < kFewElements ? 32 * PerLoad(dtype) : kFewElements;
  return n_rows <= kFewRows && p.keys.dtype == p.values.dtype &&
         HasFewLoads(dtype, n_rows > kFewRows / 2 ? kFewRows : kFewRows / 2) &&
         p.keys.wide != 0 && p.values.wide != 0 && p.keys.head_dim <= most &&
         p.values.head_dim <= most && p.values.head_dim <= of_values;
}

// Floats of a row's state.
constexpr uint32_t AttendStateFloats(uint32_t v_dim) { return 2 + v_dim; }

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ATTENTION_H_
