#include "core/checked_math.h"

#include <criterion/criterion.h>

#include <cstdint>

namespace kvevict {
namespace {

constexpr CheckedSize kMax(SIZE_MAX);

TestSuite(checked_math);

Test(checked_math, small_numbers_are_plain_arithmetic) {
  const CheckedSize r = CheckedSize(6) * CheckedSize(7) + CheckedSize(1);
  cr_assert(r.ok());
  cr_assert_eq(r.value(), 43);
}

Test(checked_math, the_largest_result_still_fits) {
  cr_assert((kMax + CheckedSize(0)).ok());
  cr_assert((CheckedSize(SIZE_MAX - 1) + CheckedSize(1)).ok());
  cr_assert((CheckedSize(SIZE_MAX / 3) * CheckedSize(3)).ok());
  cr_assert((kMax * CheckedSize(0)).ok());
}

Test(checked_math, overflow_is_noticed) {
  cr_assert_not((kMax + CheckedSize(1)).ok());
  cr_assert_not((kMax * CheckedSize(2)).ok());
  cr_assert_not(
      (CheckedSize(size_t{1} << 32) * CheckedSize(size_t{1} << 32)).ok());
}

Test(checked_math, overflow_sticks) {
  const CheckedSize over = kMax + CheckedSize(1);
  cr_assert_not((over * CheckedSize(0)).ok());
  cr_assert_not((CheckedSize(0) + over).ok());
  cr_assert_not((CheckedSize(0) * over).ok());
  cr_assert_not(over.AlignUp(64).ok());
}

Test(checked_math, rounds_up_to_the_alignment) {
  for (size_t n = 0; n < 300; ++n) {
    const CheckedSize r = CheckedSize(n).AlignUp(64);
    cr_assert(r.ok());
    cr_assert_eq(r.value(), (n + 63) / 64 * 64);
  }
  cr_assert(CheckedSize(SIZE_MAX - 63).AlignUp(64).ok());
  cr_assert_not(CheckedSize(SIZE_MAX - 62).AlignUp(64).ok());
}

}  // namespace
}  // namespace kvevict
