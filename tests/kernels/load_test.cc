// core/dtypes/load-inl.h: every bit pattern. Tails, strides and addresses are those of
// tests/capi/moves_test.c.
#include <criterion/criterion.h>

#include <cmath>
#include <vector>

#include "tests/kernels/targets.h"
#include "tests/oracle/quantized.h"

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
void TestedLoadPart(const RowSource& rows, uint32_t r, size_t first, size_t n,
                    float* out) {
  LoadRow(rows, r, first, n, out);
}
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(TestedLoadRow);
HWY_EXPORT(TestedLoadPart);

bool SameNumber(float a, double b) {
  return std::isnan(b) ? std::isnan(a)
                       : a == b && std::signbit(a) == std::signbit(b);
}

double Decode(DType dtype, const uint8_t* row, uint32_t n = 1, uint32_t e = 0) {
  return oracle_code(static_cast<kvevict_dtype>(dtype), row, n, e);
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

// All 256 codes, as they are and times a power of two.
Test(load, decodes_every_code_of_a_byte) {
  uint8_t codes[256];
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  const float scale = -0.25f;
  ForEachTarget([&](SimdTarget simd) {
    for (const DTypeInfo& info : kDTypes) {
      if (info.block_bytes != 1) continue;
      const uint32_t n = 256 * info.block_elements;
      RowSource rows;
      rows.base = codes;
      rows.dtype = info.dtype;
      rows.element_stride = info.element_bytes;
      rows.n_elements = n;
      for (const uint8_t* base : {static_cast<const uint8_t*>(nullptr),
                                  reinterpret_cast<const uint8_t*>(&scale)}) {
        rows.scale.base = base;
        std::vector<float> out(n);
        KV_DISPATCH(simd, TestedLoadPart)(rows, 0, 0, n, out.data());
        for (uint32_t e = 0; e < n; ++e) {
          double expected = Decode(info.dtype, codes, n, e);
          if (base != nullptr) expected *= double{scale};
          if (info.takes_minimum) expected += 0.0;
          cr_assert(SameNumber(out[e], expected), "%s %s element %u is %g",
                    simd.name, info.name, e, double{out[e]});
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvevict
#endif  // HWY_ONCE
