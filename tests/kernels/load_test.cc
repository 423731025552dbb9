// core/dtypes/load-inl.h: every bit pattern, every tail, any stride and address.
#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/half_bits.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/load_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/dtypes/load-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
void TestedLoadRow(const uint8_t* from, DType dtype, int64_t element_stride,
                   size_t n, float* out) {
  RowSource rows;
  rows.base = from;
  rows.element_stride = element_stride;
  rows.dtype = dtype;
  LoadRow(rows, 0, 0, n, out);
}
size_t TestedPaddedRow(size_t n) { return PaddedRow(n); }
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(TestedLoadRow);
HWY_EXPORT(TestedPaddedRow);

bool SameNumber(float a, double b) {
  return std::isnan(b) ? std::isnan(a)
                       : a == b && std::signbit(a) == std::signbit(b);
}

double Decode(DType dtype, const uint8_t* element) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, element, sizeof(bits));
  return dtype == DType::kF16 ? DecodeF16(bits) : DecodeBF16(bits);
}

TestSuite(load);

Test(load, decodes_every_16_bit_pattern) {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> out(bits.size());
  ForEachTarget([&](SimdTarget simd) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      KV_DISPATCH(simd, TestedLoadRow)
      (reinterpret_cast<const uint8_t*>(bits.data()), dtype, 2, bits.size(),
       out.data());
      for (size_t i = 0; i < bits.size(); ++i) {
        const double expected =
            Decode(dtype, reinterpret_cast<const uint8_t*>(&bits[i]));
        cr_assert(SameNumber(out[i], expected), "%s dtype %d: 0x%04zx is %g",
                  simd.name, static_cast<int>(dtype), i,
                  static_cast<double>(out[i]));
      }
    }
  });
}

// Rows of 0 to 40 elements, packed, spread out, reversed and repeated, that touch an
// inaccessible page at either end.
Test(load, reads_the_row_and_nothing_else) {
  Random random(TestSeed("load/reads_the_row_and_nothing_else"));
  ForEachTarget([&](SimdTarget simd) {
    for (const DTypeInfo& info : kDTypes) {
      if (!info.can_score) continue;
      const int64_t size = info.element_bytes;
      for (int64_t stride : {size, 2 * size, 3 * size + 1, -size, int64_t{0}}) {
        for (size_t n = 0; n <= 40; ++n) {
          for (auto side :
               {GuardedPages::Against::kEnd, GuardedPages::Against::kBegin}) {
            const size_t span = n == 0 ? 0 : (n - 1) * std::abs(stride) + size;
            const GuardedPages memory(span, side);
            for (size_t i = 0; i < span; ++i) {
              memory.data()[i] = static_cast<uint8_t>(random.Next());
            }
            const uint8_t* from =
                memory.data() + (stride < 0 ? (n - 1) * -stride : 0);
            const size_t padded = KV_DISPATCH(simd, TestedPaddedRow)(n);
            std::vector<float> out(padded + 1, 42.0f);
            KV_DISPATCH(simd, TestedLoadRow)
            (n == 0 ? memory.data() : from, info.dtype, stride, n, out.data());
            for (size_t i = 0; i < n; ++i) {
              const double expected =
                  Decode(info.dtype, from + static_cast<int64_t>(i) * stride);
              cr_assert(SameNumber(out[i], expected),
                        "%s %s stride %lld n %zu element %zu", simd.name,
                        info.name, static_cast<long long>(stride), n, i);
            }
            for (size_t i = n; i < padded; ++i) cr_assert(out[i] == 0.0f);
            cr_assert(out[padded] == 42.0f);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvevict
#endif  // HWY_ONCE
