#include "core/fused.h"

#include <criterion/criterion.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

namespace kvevict {
namespace {

TestSuite(fused);

void Expect(float a, float b, float c) {
  const float ours = FusedMulAdd(a, b, c);
  const float theirs = std::fmaf(a, b, c);
  cr_assert(std::bit_cast<uint32_t>(ours) == std::bit_cast<uint32_t>(theirs) ||
                (std::isnan(ours) && std::isnan(theirs)),
            "%a * %a + %a: %a is not %a", a, b, c, ours, theirs);
}

Test(fused, is_the_c_librarys_for_any_bits) {
  std::mt19937 random(1);
  const auto any = [&] { return std::bit_cast<float>(uint32_t(random())); };
  for (int i = 0; i < 300000; ++i) Expect(any(), any(), any());
}

// c is near the product, or near half its last place.
Test(fused, is_the_c_librarys_where_the_parts_meet) {
  std::mt19937 random(2);
  const auto odd = [&] {
    return std::ldexp(float(random() >> 8 | 1), int(random() % 20) - 34);
  };
  for (int i = 0; i < 300000; ++i) {
    const float a = odd();
    const float b = odd();
    Expect(a, b, -a * b);
    Expect(a, b, std::ldexp(a * b, 24 - int(random() % 80)));
    Expect(a, -b, std::ldexp(1.0f, int(random() % 60) - 20));
  }
}

// 1 + 2^-24 and a little: between two floats, above the middle by less than a
// double shows.
Test(fused, rounds_once) {
  const float a = 0x1.000002p0f;
  const float b = 0x1.fffffep-25f;  // a * b = 2^-24 * (1 - 2^-46)...
  Expect(a, b, 1.0f);
  Expect(0x1.000002p-12f, 0x1.fffffcp-13f, 1.0f);
  Expect(0x1.000002p-12f, 0x1.000002p-12f, 1.0f);
  cr_assert_eq(FusedMulAdd(0x1p-12f, 0x1p-12f, 1.0f), 1.0f);
  cr_assert_eq(FusedMulAdd(0x1.000002p-12f, 0x1p-12f, 1.0f), 0x1.000002p0f);
}

}  // namespace
}  // namespace kvevict
