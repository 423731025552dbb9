// Conversions between f32 and the 16-bit cache formats, to the nearest even.
#ifndef KVEVICT_TESTS_TOOLS_FLOAT_BITS_H_
#define KVEVICT_TESTS_TOOLS_FLOAT_BITS_H_

#include <bit>
#include <cstdint>

namespace kvevict::tools {

inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {  // a NaN stays one, made quiet
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float Bf16ToF32(uint16_t value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x477FF000) {  // 65520 and above round to infinity
    return static_cast<uint16_t>(sign | 0x7C00);
  }
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 0.5, whose last mantissa bit is worth 2^-24 like a
    // subnormal's, lets the addition round.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign |
                                 (std::bit_cast<uint32_t>(sum) - 0x3F000000));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(
      sign | ((magnitude - (112u << 23) + 0xFFF + odd) >> 13));
}

inline float F16ToF32(uint16_t value) {
  const uint32_t sign = uint32_t{value & 0x8000u} << 16;
  const uint32_t magnitude = value & 0x7FFF;
  if (magnitude >= 0x7C00) {
    return std::bit_cast<float>(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  }
  if (magnitude < 0x400) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TESTS_TOOLS_FLOAT_BITS_H_
