// Arguments and launch shape of regroup.cu.
#ifndef KVEVICT_CUDA_KERNELS_REGROUP_H_
#define KVEVICT_CUDA_KERNELS_REGROUP_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kRegroupThreads = 64;
constexpr uint32_t kRegroupRows = 32;  // of a run, or a group

// The bytes of a row of codes. A thread has one of them.
constexpr uint32_t RegroupColumns(const CacheRows& to) {
  return IsNibbles(static_cast<int>(to.dtype)) ? to.n_elements / 2
                                               : to.n_elements;
}

// The number of a plane's groups that receive rows.
constexpr uint32_t GroupsOf(const CacheRows& to, uint32_t first_slot,
                            uint32_t n_rows) {
  const uint32_t size = to.scale.group_tokens;
  return (first_slot % size + n_rows + size - 1) / size;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_REGROUP_H_
