// Launch shapes of merge.cu.
#ifndef KVEVICT_CUDA_KERNELS_MERGE_H_
#define KVEVICT_CUDA_KERNELS_MERGE_H_

#include "cosines.h"
#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kMergeThreads = kCosineThreads;
// merge_rows: rows that stay, per block.
constexpr uint32_t kMergeRows = kMergeThreads / 32;

// The numbers of kvevict_merge.
enum : uint32_t { kMergeValues = 1, kMergePivot = 2, kMergeWeighted = 3 };

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_MERGE_H_
