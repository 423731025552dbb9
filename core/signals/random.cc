#include "core/signals/signals.h"

namespace kvevict {
namespace {

// The finaliser of splitmix64: a bijection that mixes all bits.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

// Without state, so that any order of calls gives the same numbers.
float RandomScore(uint64_t seed, uint32_t layer, uint32_t head,
                  uint32_t position) {
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;
  uint64_t z = Mix(seed + kStep);
  z = Mix(z + ((uint64_t{layer} << 32) | head) * kStep + kStep);
  z = Mix(z + position * kStep + kStep);
  return static_cast<float>(z >> 40) * 0x1p-24f;
}

}  // namespace kvevict
