#include "core/signals/signals.h"

#include <algorithm>
#include <bit>

namespace kvevict {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;

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
  uint64_t z = Mix(seed + kStep);
  z = Mix(z + ((uint64_t{layer} << 32) | head) * kStep + kStep);
  z = Mix(z + position * kStep + kStep);
  return static_cast<float>(z >> 40) * 0x1p-24f;
}

// The fraction of the base 2 logarithm comes bit by bit from squares, in
// integers, so that every device computes the same.
float Exponential(uint32_t bits) {
  constexpr uint32_t kFractionBits = 26;
  constexpr float kUnit = 0x1.62e43p-27f;  // ln 2 * 2^-26
  bits = std::max(bits, 1u);
  const auto n_zeros = static_cast<uint32_t>(std::countl_zero(bits));
  uint32_t x = bits << n_zeros;  // of [2^31, 2^32)
  uint32_t log = 0;
  for (uint32_t i = 0; i < kFractionBits; ++i) {
    const uint64_t square = uint64_t{x} * x;
    const auto bit = static_cast<uint32_t>(square >> 63);
    x = static_cast<uint32_t>(square >> (31 + bit));
    log = log << 1 | bit;
  }
  return static_cast<float>(((n_zeros + 1) << kFractionBits) - log) * kUnit;
}

RandomRow::RandomRow(uint64_t seed, uint32_t layer, uint32_t head)
    : state_(Mix(Mix(seed + kStep) + ((uint64_t{layer} << 32) | head) * kStep +
                 kStep)) {}

uint32_t RandomRow::Bits(uint32_t n_seen, uint32_t position) const {
  const uint64_t at = (uint64_t{n_seen} << 32) | position;
  return static_cast<uint32_t>(Mix(state_ + at * kStep + kStep) >> 32);
}

}  // namespace kvevict
