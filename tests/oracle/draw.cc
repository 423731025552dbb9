#include "tests/oracle/draw.h"

#include <cmath>

namespace {

// splitmix64's next number after a state.
uint64_t NextAfter(uint64_t state) {
  uint64_t z = state + 0x9e3779b97f4a7c15u;
  z ^= z >> 30;
  z *= 0xbf58476d1ce4e5b9u;
  z ^= z >> 27;
  z *= 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The state that lies `steps` after another.
uint64_t Ahead(uint64_t state, uint64_t steps) {
  return state + steps * 0x9e3779b97f4a7c15u;
}

}  // namespace

double oracle_exponential(uint64_t seed, uint32_t layer, uint32_t head,
                          uint32_t n_seen, uint32_t position) {
  const uint64_t row = (static_cast<uint64_t>(layer) << 32) + head;
  const uint64_t place = (static_cast<uint64_t>(n_seen) << 32) + position;
  const uint64_t of_seed = NextAfter(seed);
  const uint64_t of_row = NextAfter(Ahead(of_seed, row));
  uint64_t bits = NextAfter(Ahead(of_row, place)) / 4294967296u;
  if (bits == 0) bits = 1;
  return -std::log(static_cast<double>(bits) / 4294967296.0);
}
