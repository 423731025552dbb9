// 2^x with the bits of core/kernels/exp2-inl.h on targets that have a fused
// multiply-add.
#ifndef KVEVICT_CUDA_KERNELS_EXP2_CUH_
#define KVEVICT_CUDA_KERNELS_EXP2_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// 2^x for x <= 127: 0 for x < -126, NaN for NaN.
KV_DEVICE float SameExp2(float x) {
  constexpr float kShift = 12582912.0f + 127.0f;
  const float rounded = x + kShift;
  const float f = x - (rounded - kShift);
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof(bits));
  float p = 1.5453163e-4f;
  p = Fma(p, f, 1.33908633e-3f);
  p = Fma(p, f, 9.61808302e-3f);
  p = Fma(p, f, 5.55035695e-2f);
  p = Fma(p, f, 0.240226507f);
  p = Fma(p, f, 0.693147182f);
  p = Fma(p, f, 1.0f);
  return x < -126.0f ? 0.0f : p * ToFloat<kF32>(bits << 23);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_EXP2_CUH_
