// Signals that need no kernel of their own on the CPU.
#ifndef KVEVICT_CORE_SIGNALS_SIGNALS_H_
#define KVEVICT_CORE_SIGNALS_SIGNALS_H_

#include <cstdint>

namespace kvevict {

// Numbers in [0, 1) that depend only on seed, layer, head and position, so that
// a token gets the same number at every eviction.
float RandomScore(uint64_t seed, uint32_t layer, uint32_t head,
                  uint32_t position);

// Random bits for a head's tokens that also depend on the number of tokens seen
// so far: each eviction has its own. That number is above 0.
class RandomRow {
 public:
  RandomRow(uint64_t seed, uint32_t layer, uint32_t head);
  uint32_t Bits(uint32_t n_seen, uint32_t position) const;

 private:
  uint64_t state_;
};

// A number of Exp(1): -ln(bits / 2^32) in steps of 2^-26 ln 2, where bits of 0
// count as 1. It is above 0.
float Exponential(uint32_t bits);

// 2^(-age / half_life), but at least 2^-kMostHalvings: what is left of a score.
// It never rises with age. half_life > 0, age < 2^31.
constexpr uint32_t kMostHalvings = 126;
float DecayFactor(uint32_t age, uint32_t half_life);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNALS_H_
