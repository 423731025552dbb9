// Every 16-bit value survives. A value between two goes to the nearest, from the
// middle to the even one.
#include <criterion/criterion.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "tests/tools/float_bits.h"

namespace kvevict::tools {
namespace {

// A 16-bit format, given by its two conversions and its greatest finite value.
struct Format {
  uint16_t (*narrow)(float);
  float (*widen)(uint16_t);
  uint16_t max;
};

constexpr Format kF16 = {F32ToF16, F16ToF32, 0x7BFF};
constexpr Format kBf16 = {F32ToBf16, Bf16ToF32, 0x7F7F};

void ExpectNarrowed(const Format& format, float value, uint16_t expected) {
  cr_expect(format.narrow(value) == expected, "%a became %04x instead of %04x",
            static_cast<double>(value), format.narrow(value), expected);
  cr_expect(format.narrow(-value) == (expected | 0x8000),
            "%a became %04x instead of %04x", static_cast<double>(-value),
            format.narrow(-value), expected | 0x8000);
}

void RoundsToNearestEven(const Format& format) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (uint16_t bits = 0; bits < format.max; ++bits) {
    const uint16_t next = static_cast<uint16_t>(bits + 1);
    const float low = format.widen(bits);
    const float high = format.widen(next);
    cr_assert(low < high);
    // Exact: neighbours differ by a power of two.
    const float middle = low + (high - low) / 2;
    ExpectNarrowed(format, low, bits);
    ExpectNarrowed(format, middle, bits % 2 == 0 ? bits : next);
    if (middle > low && middle < high) {
      ExpectNarrowed(format, std::nextafter(middle, low), bits);
      ExpectNarrowed(format, std::nextafter(middle, kInfinity), next);
    }
  }
}

void KeepsInfinityAndNan(const Format& format) {
  const uint16_t infinity = static_cast<uint16_t>(format.max + 1);
  ExpectNarrowed(format, std::numeric_limits<float>::infinity(), infinity);
  ExpectNarrowed(format, std::numeric_limits<float>::max(), infinity);
  cr_expect(std::isinf(format.widen(infinity)));
  // The least signalling NaN has its only mantissa bit where 16 bits have none.
  for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFF800001u}) {
    const uint16_t narrowed = format.narrow(std::bit_cast<float>(bits));
    cr_expect(std::isnan(format.widen(narrowed)));
  }
}

Test(engine_float_bits, f16_rounds_to_nearest_even) {
  RoundsToNearestEven(kF16);
}
Test(engine_float_bits, bf16_rounds_to_nearest_even) {
  RoundsToNearestEven(kBf16);
}
Test(engine_float_bits, f16_keeps_infinity_and_nan) {
  KeepsInfinityAndNan(kF16);
}
Test(engine_float_bits, bf16_keeps_infinity_and_nan) {
  KeepsInfinityAndNan(kBf16);
}

Test(engine_float_bits, knows_the_formats) {
  cr_expect(F32ToF16(1.0f) == 0x3C00);
  cr_expect(F16ToF32(0x7BFF) == 65504.0f);
  cr_expect(F16ToF32(0x0001) == 0x1p-24f);
  cr_expect(F16ToF32(0x0400) == 0x1p-14f);
  cr_expect(F32ToBf16(1.0f) == 0x3F80);
  cr_expect(Bf16ToF32(0x4049) == 3.140625f);
}

}  // namespace
}  // namespace kvevict::tools
