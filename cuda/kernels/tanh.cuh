// tanh, for capped logits.
#ifndef KVEVICT_CUDA_KERNELS_TANH_CUH_
#define KVEVICT_CUDA_KERNELS_TANH_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// Within 2^-22.
KV_DEVICE float Tanh(float x) {
  const float t = Exp2((x < 0.0f ? x : -x) * 2.88539008177792681472f);
  const float size = (1.0f - t) / (1.0f + t);
  return x < 0.0f ? -size : size;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_TANH_CUH_
