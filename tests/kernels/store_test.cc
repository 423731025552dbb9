// core/dtypes/store-inl.h: the nearest number, halves to even.
#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "tests/kernels/half_bits.h"
#include "tests/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/store_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/dtypes/store-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
void TestedStoreRow(const float* from, size_t n, DType dtype,
                    int64_t element_stride, uint8_t* to) {
  RowSource rows;
  rows.base = to;
  rows.element_stride = element_stride;
  rows.dtype = dtype;
  StoreRow(from, rows, 0, 0, n);
}
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(TestedStoreRow);

uint16_t Store(SimdTarget simd, DType dtype, float v) {
  uint16_t bits = 0;
  KV_DISPATCH(simd, TestedStoreRow)
  (&v, 1, dtype, 2, reinterpret_cast<uint8_t*>(&bits));
  return bits;
}

double Decode(DType dtype, uint16_t bits) {
  return dtype == DType::kF16 ? DecodeF16(bits) : DecodeBF16(bits);
}

TestSuite(store);

// Tries every number, the value half way to the next, and its neighbours.
Test(store, rounds_to_the_nearest_and_halves_to_even) {
  ForEachTarget([&](SimdTarget simd) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      const uint32_t infinity = dtype == DType::kF16 ? 0x7C00 : 0x7F80;
      for (uint32_t i = 0; i < infinity; ++i) {
        const auto bits = static_cast<uint16_t>(i);
        const double low = Decode(dtype, bits);
        // The largest number rounds up where the next one would be.
        const double high = i + 1 < infinity
                                ? Decode(dtype, static_cast<uint16_t>(i + 1))
                                : 2 * low - Decode(dtype, bits - 1);
        const auto half = static_cast<float>((low + high) / 2);
        const uint32_t even = i % 2 == 0 ? i : i + 1;
        const bool ok =
            Store(simd, dtype, static_cast<float>(low)) == i &&
            Store(simd, dtype, half) == even &&
            Store(simd, dtype, std::nextafter(half, 0.0f)) == i &&
            Store(simd, dtype, std::nextafter(half, HUGE_VALF)) == i + 1 &&
            Store(simd, dtype, -half) == (even | 0x8000);
        cr_assert(ok, "%s, dtype %d: 0x%04x", simd.name,
                  static_cast<int>(dtype), i);
      }
      cr_assert(Store(simd, dtype, HUGE_VALF) == infinity);
      cr_assert(std::isnan(Decode(
          dtype, Store(simd, dtype, std::numeric_limits<float>::quiet_NaN()))));
    }
  });
}

// Tries every upper half of a number, with lower halves near the rounding points.
Test(store, packed_rows_are_those_of_elements_that_lie_apart) {
  constexpr uint32_t kLow[] = {0,      1,      0x0FFF, 0x1000, 0x1001, 0x2FFF,
                               0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  constexpr size_t n = std::size(kLow);
  constexpr size_t kHalves = 64;  // of a row, with an end that fills no vector
  ForEachTarget([&](SimdTarget simd) {
    std::vector<float> row(kHalves * n + 3);
    std::vector<uint16_t> packed(row.size() + 1);
    std::vector<uint16_t> apart(2 * row.size());
    for (uint32_t high = 0; high < 65536; high += kHalves) {
      for (size_t i = 0; i < row.size(); ++i) {
        const uint32_t bits =
            ((high + static_cast<uint32_t>(i / n)) << 16) + kLow[i % n];
        std::memcpy(&row[i], &bits, sizeof(bits));
      }
      for (DType dtype : {DType::kF16, DType::kBF16}) {
        // The address is odd.
        auto* const to = reinterpret_cast<uint8_t*>(packed.data()) + 1;
        KV_DISPATCH(simd, TestedStoreRow)(row.data(), row.size(), dtype, 2, to);
        KV_DISPATCH(simd, TestedStoreRow)
        (row.data(), row.size(), dtype, 4,
         reinterpret_cast<uint8_t*>(apart.data()));
        for (size_t i = 0; i < row.size(); ++i) {
          uint16_t got;
          std::memcpy(&got, to + 2 * i, sizeof(got));
          cr_assert(got == apart[2 * i], "%s, dtype %d, high 0x%04x, low %zu",
                    simd.name, static_cast<int>(dtype), high, i);
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvevict
#endif  // HWY_ONCE
