// The numbers of core/signals/random.cc.
#ifndef KVEVICT_CUDA_KERNELS_RANDOM_CUH_
#define KVEVICT_CUDA_KERNELS_RANDOM_CUH_

#include "device.cuh"

namespace kvevict::cuda {

// The finaliser of splitmix64.
KV_DEVICE uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;

// The generator's state for a seed, layer and head.
KV_DEVICE uint64_t RandomState(uint64_t seed, uint32_t layer, uint32_t head) {
  return Mix(Mix(seed + kStep) + ((uint64_t{layer} << 32) | head) * kStep +
             kStep);
}

KV_DEVICE float RandomScore(uint64_t seed, uint32_t layer, uint32_t head,
                            uint32_t position) {
  const uint64_t z =
      Mix(RandomState(seed, layer, head) + position * kStep + kStep);
  return static_cast<float>(static_cast<uint32_t>(z >> 40)) * 0x1p-24f;
}

KV_DEVICE uint32_t RandomBits(uint64_t seed, uint32_t layer, uint32_t head,
                              uint32_t n_seen, uint32_t position) {
  const uint64_t at = (uint64_t{n_seen} << 32) | position;
  return static_cast<uint32_t>(
      Mix(RandomState(seed, layer, head) + at * kStep + kStep) >> 32);
}

// A number of Exp(1) from random bits.
KV_DEVICE float Exponential(uint32_t bits) {
  constexpr uint32_t kFractionBits = 26;
  if (bits == 0) bits = 1;
  const uint32_t n_zeros = static_cast<uint32_t>(CountLeadingZeros(bits));
  uint32_t x = bits << n_zeros;
  uint32_t log = 0;
  for (uint32_t i = 0; i < kFractionBits; ++i) {
    const uint64_t square = uint64_t{x} * x;
    const uint32_t bit = static_cast<uint32_t>(square >> 63);
    x = static_cast<uint32_t>(square >> (31 + bit));
    log = log << 1 | bit;
  }
  return static_cast<float>(((n_zeros + 1) << kFractionBits) - log) *
         0x1.62e43p-27f;  // ln 2 * 2^-26
}

}  // namespace kvevict::cuda

#endif  // KVEVICT_CUDA_KERNELS_RANDOM_CUH_
