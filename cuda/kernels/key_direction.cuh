// Which keys have a direction, and what they are divided by to get it.
#ifndef KVEVICT_CUDA_KERNELS_KEY_DIRECTION_CUH_
#define KVEVICT_CUDA_KERNELS_KEY_DIRECTION_CUH_

#include "device.cuh"

namespace kvevict::cuda {

constexpr float kLeastNorm = 1e-12f;   // of a key that gets a direction
constexpr float kLeastCosine = 1e-8f;  // of a norm that a cosine is divided by

// Not of rows with NaN or infinity, or whose squares leave f32.
KV_DEVICE bool HasDirection(float norm) { return norm <= 3.402823466e+38f; }

KV_DEVICE float AtLeast(float v, float least) { return v > least ? v : least; }

// -cos of a key with a mean of such a length, whose product with it is `dot`.
KV_DEVICE float KeyDiff(float dot, float norm, float length) {
  return HasDirection(norm) ? -(dot / (AtLeast(norm, kLeastCosine) * length))
                            : ToFloat<kF32>(kNaNBits);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_DIRECTION_CUH_
