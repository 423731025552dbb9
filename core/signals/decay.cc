#include <bit>

#include "core/signals/signals.h"

namespace kvevict {

// 2^-t = 1 - t (ln 2 - t (ln(2)^2 / 2! - ...)) for 0 <= t < 1, cut to 24 bits.
// It is computed in integers, so that every device has the same result. Terms
// and t are in units of 2^-32. The error is below 3 of them, and each step of t
// lowers the result by more than 100.
float DecayFactor(uint32_t age, uint32_t half_life) {
  static constexpr uint32_t kTerms[] = {
      30,      437,      5676,      65510,      661577,
      5726720, 41309550, 238388332, 1031764991, 2977044472};
  const uint64_t halvings = (uint64_t{age} << 24) / half_life;
  const auto n_whole = static_cast<uint32_t>(halvings >> 24);
  if (n_whole >= kMostHalvings) return 0x1p-126f;
  const uint64_t t = (halvings & 0xFFFFFF) << 8;
  uint64_t lost = 0;
  for (const uint32_t term : kTerms) lost = term - (lost * t >> 32);
  const uint64_t left = (uint64_t{1} << 32) - (lost * t >> 32);
  return static_cast<float>(static_cast<uint32_t>(left >> 1)) * 0x1p-31f *
         std::bit_cast<float>((127 - n_whole) << 23);
}

}  // namespace kvevict
