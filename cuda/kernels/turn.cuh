// The rotation of RoPE, with the bits of core/kernels/turn-inl.h on targets with a
// fused multiply-add.
#ifndef KVEVICT_CUDA_KERNELS_TURN_CUH_
#define KVEVICT_CUDA_KERNELS_TURN_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// The cosine and sine of an angle in 2^-32 turns.
KV_DEVICE void CosineAndSine(uint32_t turn, float* cosine, float* sine) {
  // The nearest quarter turn, and the rest: at most 1/8 of a turn.
  const uint32_t quarter = (turn + (uint32_t{1} << 29)) >> 30;
  const float t =
      static_cast<float>(static_cast<int32_t>(turn - (quarter << 30))) *
      0x1p-32f;
  const float square = t * t;
  float s = -75.4016113f;
  s = Fma(s, square, 81.5925446f);
  s = Fma(s, square, -41.3416634f);
  s = Fma(s, square, 6.28318548f);
  s = s * t;
  float c = 59.4241066f;
  c = Fma(c, square, -85.448822f);
  c = Fma(c, square, 64.9393692f);
  c = Fma(c, square, -19.7392082f);
  c = Fma(c, square, 1.0f);
  const bool is_odd = (quarter & 1) != 0;
  const float x = is_odd ? s : c;
  const float y = is_odd ? c : s;
  *cosine = ((quarter + 1) & 2) != 0 ? -x : x;
  *sine = (quarter & 2) != 0 ? -y : y;
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_TURN_CUH_
