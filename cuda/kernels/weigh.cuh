// Multiplies a score by the weight of its token.
#ifndef KVEVICT_CUDA_KERNELS_WEIGH_CUH_
#define KVEVICT_CUDA_KERNELS_WEIGH_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// The same operations as core/kernels/weigh.cc: the same bits.
KV_DEVICE float Weighed(float score, float epsilon, float weight) {
  if (score == ToFloat<kF32>(kInfinityBits)) return score;
  return (score + epsilon) * weight;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_WEIGH_CUH_
