// Which keys have a direction, and the divisors that give it.
#ifndef KVEVICT_CUDA_KERNELS_KEY_DIRECTION_CUH_
#define KVEVICT_CUDA_KERNELS_KEY_DIRECTION_CUH_

#include "device.cuh"

namespace kvevict::cuda {

constexpr float kLeastNorm = 1e-12f;   // least norm of a key with a direction
constexpr float kLeastCosine = 1e-8f;  // least norm that a cosine is divided by

// False for rows with NaN or infinity, or whose squares exceed f32.
KV_DEVICE bool HasDirection(float norm) { return norm <= 3.402823466e+38f; }

KV_DEVICE float AtLeast(float v, float least) { return v > least ? v : least; }

// The negative cosine of a key and a mean of this length, whose product is
// `dot`.
KV_DEVICE float KeyDiff(float dot, float norm, float length) {
  return HasDirection(norm) ? -(dot / (AtLeast(norm, kLeastCosine) * length))
                            : ToFloat<kF32>(kNaNBits);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_KEY_DIRECTION_CUH_
