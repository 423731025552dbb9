// core/dtypes/load-inl.h: every bit pattern, every tail, any stride and address.
#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
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
size_t TestedPaddedRow(size_t n) { return PaddedRow(n); }
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {
namespace {

HWY_EXPORT(TestedLoadRow);
HWY_EXPORT(TestedLoadPart);
HWY_EXPORT(TestedPaddedRow);

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

// Rows of 0 to 40 elements, packed, spread out, reversed and repeated, that touch an
// inaccessible page at either end.
Test(load, reads_the_row_and_nothing_else) {
  Random random(TestSeed("load/reads_the_row_and_nothing_else"));
  ForEachTarget([&](SimdTarget simd) {
    for (const DTypeInfo& info : kDTypes) {
      if (!info.can_score || info.element_bytes == 0) continue;
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

// The corners of e4m3 and e5m2, written by hand.
Test(load, knows_the_corners_of_fp8) {
  struct Corner {
    DType dtype;
    uint8_t code;
    double value;
  };
  const double inf = INFINITY, nan = NAN;
  const Corner corners[] = {
      {DType::kE4M3, 0x00, 0.0},         {DType::kE4M3, 0x80, -0.0},
      {DType::kE4M3, 0x01, 0x1p-9},      {DType::kE4M3, 0x07, 7 * 0x1p-9},
      {DType::kE4M3, 0x08, 0x1p-6},      {DType::kE4M3, 0x38, 1.0},
      {DType::kE4M3, 0x78, 256.0},       {DType::kE4M3, 0x7E, 448.0},
      {DType::kE4M3, 0xFE, -448.0},      {DType::kE4M3, 0x7F, nan},
      {DType::kE4M3, 0xFF, nan},         {DType::kE5M2, 0x01, 0x1p-16},
      {DType::kE5M2, 0x03, 3 * 0x1p-16}, {DType::kE5M2, 0x04, 0x1p-14},
      {DType::kE5M2, 0xBC, -1.0},        {DType::kE5M2, 0x7B, 57344.0},
      {DType::kE5M2, 0x7C, inf},         {DType::kE5M2, 0xFC, -inf},
      {DType::kE5M2, 0x7D, nan},         {DType::kE5M2, 0xFF, nan}};
  ForEachTarget([&](SimdTarget simd) {
    for (const Corner& corner : corners) {
      RowSource rows;
      rows.base = &corner.code;
      rows.dtype = corner.dtype;
      rows.element_stride = 1;
      float out[16];
      KV_DISPATCH(simd, TestedLoadPart)(rows, 0, 0, 1, out);
      cr_assert(SameNumber(out[0], corner.value), "%s: 0x%02x is %g", simd.name,
                corner.code, double{out[0]});
    }
  });
}

Test(load, reads_blocks) {
  // d = 0.5 (f16 0x3800)
  uint8_t q8[34] = {0x00, 0x38};
  uint8_t q4[18] = {0x00, 0x38};
  for (int i = 0; i < 32; ++i) q8[2 + i] = static_cast<uint8_t>(8 * i - 128);
  for (int i = 0; i < 16; ++i)
    q4[2 + i] = static_cast<uint8_t>(16 * i + 15 - i);
  ForEachTarget([&](SimdTarget simd) {
    float out[32];
    RowSource rows;
    rows.base = q8;
    rows.dtype = DType::kQ8_0;
    KV_DISPATCH(simd, TestedLoadPart)(rows, 0, 0, 32, out);
    for (int i = 0; i < 32; ++i) {
      cr_assert(out[i] == 4.0f * static_cast<float>(i - 16), "%s", simd.name);
    }
    rows.base = q4;
    rows.dtype = DType::kQ4_0;
    KV_DISPATCH(simd, TestedLoadPart)(rows, 0, 0, 32, out);
    for (int i = 0; i < 16; ++i) {
      cr_assert(out[i] == 0.5f * static_cast<float>(7 - i), "%s", simd.name);
      cr_assert(out[16 + i] == 0.5f * static_cast<float>(i - 8), "%s",
                simd.name);
    }
  });
}

// Scales and minima with few bits, so that results are exact.
struct Numbers {
  std::vector<uint8_t> bytes;
  std::vector<double> values;  // per row

  Numbers(Random* random, DType dtype, uint32_t n) {
    for (uint32_t r = 0; r < n; ++r) {
      const float value =
          static_cast<float>(static_cast<int>(random->Below(256)) - 128) /
          512.0f;
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      uint32_t stored = bits;
      if (dtype == DType::kBF16) stored = bits >> 16;
      if (dtype == DType::kF16) {
        const hwy::float16_t half = hwy::F16FromF32(value);
        stored = 0;
        std::memcpy(&stored, &half, sizeof(half));
      }
      for (uint32_t b = 0; b < ElementBytes(dtype); ++b) {
        bytes.push_back(static_cast<uint8_t>(stored >> (8 * b)));
      }
      values.push_back(double{value});
    }
  }
  RowNumbers Of(DType dtype) const {
    RowNumbers numbers;
    numbers.base = bytes.data();
    numbers.row_stride = ElementBytes(dtype);
    numbers.dtype = dtype;
    return numbers;
  }
};

// Parts of quantized rows of every size touch an inaccessible page, with scales of
// every dtype and without.
Test(load, reads_parts_of_quantized_rows) {
  Random random(TestSeed("load/reads_parts_of_quantized_rows"));
  constexpr uint32_t kRows = 3;
  for (const DTypeInfo& info : kDTypes) {
    if (!info.is_quantized()) continue;
    for (uint32_t trial = 0; trial < 60; ++trial) {
      const uint32_t dim =
          info.block_elements * (1 + static_cast<uint32_t>(random.Below(
                                         info.block_elements > 2 ? 4 : 70)));
      const auto row_bytes = static_cast<size_t>(PackedBytes(info.dtype, dim));
      const GuardedPages memory(kRows * row_bytes,
                                trial % 2 == 0 ? GuardedPages::Against::kEnd
                                               : GuardedPages::Against::kBegin);
      for (size_t i = 0; i < kRows * row_bytes; ++i) {
        memory.data()[i] = static_cast<uint8_t>(random.Next());
      }
      const DType of_scale = kDTypes[1 + random.Below(3)].dtype;
      const DType of_minimum = kDTypes[1 + random.Below(3)].dtype;
      const Numbers scales(&random, of_scale, kRows);
      const Numbers minima(&random, of_minimum, kRows);
      RowSource rows;
      rows.base = memory.data();
      rows.row_stride = static_cast<int64_t>(row_bytes);
      rows.dtype = info.dtype;
      rows.element_stride = info.element_bytes;
      rows.n_elements = dim;
      const bool scaled = info.scale != Scale::kNone && trial % 5 != 4;
      const bool has_minimum = info.takes_minimum && trial % 3 != 2;
      if (scaled) rows.scale = scales.Of(of_scale);
      if (has_minimum) rows.minimum = minima.Of(of_minimum);
      const uint32_t r = static_cast<uint32_t>(random.Below(kRows));
      const auto first = static_cast<uint32_t>(random.Below(dim + 1));
      const auto n = static_cast<uint32_t>(
          trial % 4 == 0 ? dim - first : random.Below(dim - first + 1));
      ForEachTarget([&](SimdTarget simd) {
        const size_t padded = KV_DISPATCH(simd, TestedPaddedRow)(n);
        std::vector<float> out(padded + 1, 42.0f);
        KV_DISPATCH(simd, TestedLoadPart)(rows, r, first, n, out.data());
        for (uint32_t i = 0; i < n; ++i) {
          double expected =
              Decode(info.dtype, memory.data() + r * row_bytes, dim, first + i);
          if (scaled) expected *= scales.values[r];
          if (info.takes_minimum) {
            expected += has_minimum ? minima.values[r] : 0.0;
          }
          cr_assert(SameNumber(out[i], expected),
                    "%s %s dim %u first %u n %u element %u: %g, not %g",
                    simd.name, info.name, dim, first, n, i, double{out[i]},
                    expected);
        }
        for (size_t i = n; i < padded; ++i) cr_assert(out[i] == 0.0f);
        cr_assert(out[padded] == 42.0f);
      });
    }
  }
}

}  // namespace
}  // namespace kvevict
#endif  // HWY_ONCE
