// 16-bit floats: to f32 exactly, from f32 to nearest even.
#ifndef KVEVICT_TESTS_RIG_PTX_HALF_H_
#define KVEVICT_TESTS_RIG_PTX_HALF_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvevict::ptx {

inline float FromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t magnitude = (bits & 0x7FFFu) << 13;
  // The exponents differ by 112; the product is exact, subnormals included.
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  const bool special = magnitude >= 31u << 23;  // infinity, NaN
  return std::bit_cast<float>(
      sign |
      (special ? magnitude | 0x7F800000u : std::bit_cast<uint32_t>(value)));
}

inline uint16_t ToF16(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) >> 16 & 0x8000;
  if (std::isnan(value)) return 0x7FFF;  // the canonical NaN of the hardware
  const float magnitude = std::fabs(value);
  if (magnitude >= 65536.0f) return static_cast<uint16_t>(sign | 0x7C00);
  // The product with a power of two is exact: it counts units of the last place.
  int exponent = magnitude == 0.0f ? -14 : std::ilogb(magnitude);
  exponent = exponent < -14 ? -14 : exponent;
  const float rounded = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // A carry out of the fraction moves into the exponent, as it should.
  const auto bits = static_cast<uint32_t>(rounded) +
                    (static_cast<uint32_t>(exponent + 14) << 10);
  return static_cast<uint16_t>(sign | bits);
}

inline float FromBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_HALF_H_
