// Reduction over all threads of a block.
#ifndef KVEVICT_CUDA_KERNELS_OVER_BLOCK_CUH_
#define KVEVICT_CUDA_KERNELS_OVER_BLOCK_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// Combines values in a fixed order. `warps` has an element for each warp of
// kThreads. All threads get the result. The next call may follow at once with
// other memory.
template <uint32_t kThreads, class Combine>
KV_DEVICE float OverBlock(float v, float* warps, const Combine& combine) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    v = combine(v, ShuffleXor(v, mask));
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  BlockSync();
  v = warps[0];
  for (uint32_t w = 1; w < kThreads / 32; ++w) {
    v = combine(v, warps[w]);
  }
  return v;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_OVER_BLOCK_CUH_
