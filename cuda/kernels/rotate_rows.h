// Launch shape of rotate_rows.cu.
#ifndef KVEVICT_CUDA_KERNELS_ROTATE_ROWS_H_
#define KVEVICT_CUDA_KERNELS_ROTATE_ROWS_H_

#include "params.h"

namespace kvevict::cuda {

constexpr uint32_t kRotateThreads = 256;
// The rows of a block. A warp rotates one row after the other.
constexpr uint32_t kRotateRows = 4 * kRotateThreads / 32;

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_ROTATE_ROWS_H_
