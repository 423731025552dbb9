// f16 and bf16 by their definition, in double precision.
#ifndef KVEVICT_TESTS_KERNELS_HALF_BITS_H_
#define KVEVICT_TESTS_KERNELS_HALF_BITS_H_

#include <cmath>
#include <cstdint>
#include <limits>

namespace kvevict {

// The value of sign, exponent and fraction bits in IEEE style.
inline double DecodeIeee(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent =
      static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction =
      std::ldexp(bits & ((1u << fraction_bits) - 1), -fraction_bits);
  const bool negative = (bits >> (exponent_bits + fraction_bits) & 1) != 0;
  double size;
  if (exponent == (1 << exponent_bits) - 1) {
    size = fraction == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    size = std::ldexp(fraction, 1 - bias);
  } else {
    size = std::ldexp(1.0 + fraction, exponent - bias);
  }
  return negative ? -size : size;
}

inline double DecodeF16(uint16_t bits) { return DecodeIeee(bits, 5, 10); }
inline double DecodeBF16(uint16_t bits) { return DecodeIeee(bits, 8, 7); }

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_HALF_BITS_H_
