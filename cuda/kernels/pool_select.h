// The launch of pool_select.cu.
#ifndef KVEVICT_CUDA_KERNELS_POOL_SELECT_H_
#define KVEVICT_CUDA_KERNELS_POOL_SELECT_H_

#include "params.h"
#include "pool1d.h"
#include "topk.h"

namespace kvevict::cuda {

struct PoolSelectParams {
  static constexpr uint32_t kMaxLayers = SelectParams::kMaxLayers;
  SelectLists lists;
  uint32_t kernel;  // as in PoolParams, at most kMostSelectPoolKernel
  uint32_t is_max;
  uint32_t edge_shrinks;
  uint32_t n_unpooled;  // the last ones count as +infinity
  SelectLayer layers[kMaxLayers];
};
static_assert(sizeof(PoolSelectParams) <= 4096);

// pool_select: grid (n_lists, n_layers), a block of kSelectThreads per list,
// with PoolSelectBytes() of the longest in dynamic shared memory. Wider
// kernels, and lists longer than MostPoolSelectTokens(), use pool_rows and
// select_topk.
static_assert(kPoolThreads == kSelectThreads);
constexpr uint32_t kMostSelectPoolKernel = 513;
constexpr uint32_t kPoolSelectWords = 2560;  // in addition to the keys

constexpr uint32_t PoolSelectBytes(uint32_t n_tokens) {
  return 4 * (kPoolSelectWords + (n_tokens + 3) / 4 * 4);
}

// Half of a multiprocessor's shared memory, minus 1 KB that the system takes of
// it, so that two lists at work hide each other's barriers.
constexpr uint32_t MostPoolSelectBytes(uint32_t sm) {
  return (SharedKilobytes(sm) / 2 - 1) * 1024;
}

constexpr uint32_t MostPoolSelectTokens(uint32_t sm) {
  return MostPoolSelectBytes(sm) / 4 - kPoolSelectWords;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_POOL_SELECT_H_
