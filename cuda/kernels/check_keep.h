// Arguments and launch shape of check_keep.cu.
#ifndef KVEVICT_CUDA_KERNELS_CHECK_KEEP_H_
#define KVEVICT_CUDA_KERNELS_CHECK_KEEP_H_

#include "params.h"

namespace kvevict::cuda {

struct CheckKeepParams {
  uint64_t keep;     // i32 [n_lists, keep_stride]
  uint64_t n_wrong;  // u32, zero before
  CountTable counts;
  uint32_t n_tokens;
  uint32_t n_keep;
  uint32_t any_order;  // slots need not ascend
  uint32_t keep_stride;
  uint32_t first_slot;  // no slot is below it
  uint32_t reserved;
};
static_assert(sizeof(CheckKeepParams) == 56);

// Grid (n_keep / 256, n_lists).
constexpr uint32_t kCheckKeepThreads = 256;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_CHECK_KEEP_H_
