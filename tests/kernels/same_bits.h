// Kernels that give the same bits in every layout, and on every target that multiplies
// and adds at once.
#ifndef KVEVICT_TESTS_KERNELS_SAME_BITS_H_
#define KVEVICT_TESTS_KERNELS_SAME_BITS_H_

#include <criterion/criterion.h>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/targets.h"

namespace kvevict {

// run(target, layout) returns numbers of rows that have `dim` elements of a dtype.
template <class Run>
void ExpectSameInEveryLayout(DType dtype, uint32_t dim, const Run& run) {
  const RowLayout plain = Packed(dtype);
  ForEachTarget([&](SimdTarget simd) {
    const auto packed = run(simd, plain);
    for (const RowLayout& layout : EveryLayout(dtype)) {
      cr_assert(SameBits(run(simd, layout), packed), "%s, %s, dtype %d, dim %u",
                simd.name, layout.name, static_cast<int>(dtype), dim);
    }
  });
}

// The same of packed rows.
template <class Run>
void ExpectSameOnFusedTargets(DType dtype, uint32_t dim, const Run& run) {
  const RowLayout plain = Packed(dtype);
  decltype(run(SimdTargetAt(0), plain)) first;
  ForEachTarget([&](SimdTarget simd) {
    if (!HasFusedArithmetic(simd)) return;
    const auto numbers = run(simd, plain);
    if (first.empty()) first = numbers;
    cr_assert(SameBits(numbers, first), "%s, dtype %d, dim %u", simd.name,
              static_cast<int>(dtype), dim);
  });
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_KERNELS_SAME_BITS_H_
