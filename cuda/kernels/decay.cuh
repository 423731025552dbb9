// The factor of core/signals/decay.cc.
#ifndef KVEVICT_CUDA_KERNELS_DECAY_CUH_
#define KVEVICT_CUDA_KERNELS_DECAY_CUH_

#include "device.cuh"

namespace kvevict::cuda {

KV_DEVICE float DecayFactor(uint32_t age, uint32_t half_life) {
  const uint64_t halvings = (uint64_t{age} << 24) / half_life;
  const uint32_t n_whole = static_cast<uint32_t>(halvings >> 24);
  if (n_whole >= 126) return 0x1p-126f;
  const uint64_t t = (halvings & 0xFFFFFF) << 8;
  uint64_t lost = 30;
  lost = 437 - (lost * t >> 32);
  lost = 5676 - (lost * t >> 32);
  lost = 65510 - (lost * t >> 32);
  lost = 661577 - (lost * t >> 32);
  lost = 5726720 - (lost * t >> 32);
  lost = 41309550 - (lost * t >> 32);
  lost = 238388332 - (lost * t >> 32);
  lost = 1031764991 - (lost * t >> 32);
  lost = 2977044472u - (lost * t >> 32);
  const uint64_t left = (uint64_t{1} << 32) - (lost * t >> 32);
  return static_cast<float>(static_cast<uint32_t>(left >> 1)) * 0x1p-31f *
         ToFloat<kF32>((127 - n_whole) << 23);
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_DECAY_CUH_
