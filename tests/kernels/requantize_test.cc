// core/kernels/requantize.h against the oracle byte by byte, and the errors that
// the docs promise.
#include "core/kernels/requantize.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/capi/support/pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/quantize.h"
#include "tests/oracle/quantized.h"

namespace kvevict {
namespace {

const std::vector<DType> kTo = [] {
  std::vector<DType> scored;
  for (const DTypeInfo& info : kDTypes) {
    if (info.can_score) scored.push_back(info.dtype);
  }
  return scored;
}();

kvevict_dtype Public(DType dtype) { return static_cast<kvevict_dtype>(dtype); }

bool IsFused(SimdTarget simd) {
  return std::strncmp(simd.name, "SSE", 3) != 0 &&
         std::strncmp(simd.name, "SSSE", 4) != 0;
}

// n_bytes that end where an inaccessible page begins.
class GuardedPages {
 public:
  explicit GuardedPages(size_t n_bytes)
      : pages_(test_guarded_open(n_bytes, true)) {}
  ~GuardedPages() { test_guarded_close(pages_); }

  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  uint8_t* data() const { return pages_.data; }

 private:
  test_guarded pages_;
};

// The kinds of scales and minima that rows have.
struct NumberKind {
  bool scale = true, minimum = true, stays = false;
  DType dtype = DType::kF32;
};

std::vector<NumberKind> KindsOf(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  if (info.scale == Scale::kNone) return {{false, false}};
  std::vector<NumberKind> kinds;
  for (DType of : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (!info.takes_minimum || dtype == DType::kI8) {
      kinds.push_back({true, false, false, of});
    }
    if (info.takes_minimum) kinds.push_back({true, true, false, of});
    kinds.push_back({true, info.takes_minimum, true, of});
  }
  kinds.push_back({true, false, true, DType::kF32});
  if (info.scale == Scale::kOptional) kinds.push_back({false, false});
  return kinds;
}

// Packed rows of a dtype, each with its scales. Bytes behind are not touched.
struct Stored {
  Stored(DType dtype, const NumberKind& kind, uint32_t n_rows, uint32_t dim)
      : kind(kind),
        row_bytes(PackedBytes(dtype, dim)),
        number_bytes(ElementBytes(kind.dtype)),
        rows(n_rows * row_bytes),
        scales(n_rows * number_bytes),
        minima(n_rows * number_bytes) {
    source.base = rows.data();
    source.row_stride = static_cast<int64_t>(row_bytes);
    source.element_stride = ElementBytes(dtype);
    source.dtype = dtype;
    source.n_elements = dim;
    std::memset(rows.data(), 0xA5, n_rows * row_bytes);
    const auto number = [&](const GuardedPages& memory) {
      RowNumbers numbers;
      numbers.base = memory.data();
      numbers.row_stride = static_cast<int64_t>(number_bytes);
      numbers.dtype = kind.dtype;
      numbers.is_constant = kind.stays;
      return numbers;
    };
    if (kind.scale) source.scale = number(scales);
    if (kind.minimum) source.minimum = number(minima);
    // 2^-6 and -0.75 are exact in all.
    Fill(scales, {0x3C800000u, 0x2400u, 0x3C80u});
    Fill(minima, {0xBF400000u, 0xBA00u, 0xBF40u});
  }
  void Fill(const GuardedPages& memory, const uint32_t (&bits)[3]) const {
    const int i = static_cast<int>(kind.dtype) - 1;
    std::memcpy(memory.data(), &bits[i], number_bytes);
  }
  double Number(const GuardedPages& memory, uint32_t r) const {
    return oracle_code(Public(kind.dtype), memory.data() + r * number_bytes, 1,
                       0);
  }

  const NumberKind kind;
  const size_t row_bytes, number_bytes;
  GuardedPages rows, scales, minima;
  RowSource source;
};

oracle_numbers NumbersFor(const Stored& stored) {
  oracle_numbers x{};
  x.has_scale = stored.kind.scale;
  x.has_minimum = stored.kind.minimum;
  x.stays = stored.kind.stays;
  x.scale_dtype = x.minimum_dtype = Public(stored.kind.dtype);
  if (!x.stays) return x;
  x.scale = static_cast<float>(stored.Number(stored.scales, 0));
  if (x.has_minimum) {
    x.minimum = static_cast<float>(stored.Number(stored.minima, 0));
  }
  return x;
}

// Packed numbers.
RowSource SourceOf(const std::vector<float>& rows, uint32_t dim) {
  RowSource source;
  source.base = reinterpret_cast<const uint8_t*>(rows.data());
  source.row_stride = int64_t{dim} * 4;
  source.element_stride = 4;
  source.dtype = DType::kF32;
  source.n_elements = dim;
  return source;
}

bool SameNumber(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Compares rows stored from `first_row` on with the oracle.
void ExpectStored(SimdTarget simd, const std::vector<float>& rows, uint32_t dim,
                  DType to, const NumberKind& kind, const char* what) {
  const uint32_t first_row = kind.stays ? 0 : 2;
  const auto n = static_cast<uint32_t>(rows.size() / dim);
  const Stored stored(to, kind, first_row + n, dim);
  RequantizeRowsArgs args;
  args.from[0] = SourceOf(rows, dim);
  args.to[0] = stored.source;
  args.first_row = first_row;
  const uint32_t parts[] = {0, n / 3, n};
  for (int i = 0; i < 2; ++i) {
    args.begin = parts[i];
    args.end = parts[i + 1];
    args.streams = i == 1;
    RequantizeRows(simd, args);
  }
  std::vector<uint8_t> wanted(stored.row_bytes);
  for (uint32_t i = 0; i < n; ++i) {
    const float* const row = rows.data() + size_t{i} * dim;
    oracle_numbers x = NumbersFor(stored);
    oracle_quantize(Public(to), row, dim, IsFused(simd), &x, wanted.data());
    const uint8_t* const got =
        stored.rows.data() + (first_row + i) * stored.row_bytes;
    for (size_t b = 0; b < wanted.size(); ++b) {
      cr_assert(got[b] == wanted[b],
                "%s, %s, %s of %s, dim %u, row %u: byte %zu is %02x, not %02x "
                "(scale %.9g, minimum %.9g)",
                simd.name, what, InfoOf(to).name, InfoOf(kind.dtype).name, dim,
                i, b, got[b], wanted[b], static_cast<double>(x.scale),
                static_cast<double>(x.minimum));
    }
    if (kind.stays) continue;
    if (kind.scale) {
      const double scale = stored.Number(stored.scales, first_row + i);
      cr_assert(SameNumber(scale, x.scale), "%s, %s: scale %.9g, not %.9g",
                simd.name, InfoOf(to).name, scale, double{x.scale});
    }
    if (kind.minimum) {
      const double minimum = stored.Number(stored.minima, first_row + i);
      cr_assert(minimum == double{x.minimum}, "%s, %s: minimum %.9g, not %.9g",
                simd.name, InfoOf(to).name, minimum, double{x.minimum});
    }
  }
  for (size_t b = 0; b < first_row * stored.row_bytes; ++b) {
    cr_assert(stored.rows.data()[b] == 0xA5);
  }
}

// Gaussian numbers. Some rows lie far from 0, some close together, and some are
// large or small.
std::vector<float> Draw(Random& random, uint32_t n_rows, uint32_t dim) {
  std::vector<float> rows;
  for (uint32_t r = 0; r < n_rows; ++r) {
    const float size =
        std::ldexp(1.0f, static_cast<int>(random.Below(20)) - 12);
    const float offset = r % 3 == 0 ? 40.0f * size * random.Gaussian() : 0.0f;
    for (uint32_t e = 0; e < dim; ++e) {
      // Many of them are halves of a step.
      const float v = r % 4 == 1 ? static_cast<float>(random.Below(511)) - 255
                                 : random.Gaussian();
      rows.push_back(offset + size * v);
    }
  }
  return rows;
}

TestSuite(requantize);

Test(requantize, makes_the_same_bytes_on_every_target_at_any_size) {
  Random random(TestSeed("requantize/any_size"));
  for (DType to : kTo) {
    const uint32_t block = InfoOf(to).block_elements;
    for (const uint32_t n : {1u, 2u, 7u, 15u, 16u, 17u, 40u, 64u, 65u, 130u,
                             1024u, 1056u, 2112u, 3001u}) {
      const uint32_t dim = (n + block - 1) / block * block;
      std::vector<float> rows = Draw(random, 6, dim);
      for (uint32_t e = 0; e < dim; ++e) {  // between two of f16 or bf16
        const float half = static_cast<float>(random.Below(1024)) + 0.5f;
        rows[size_t{2} * dim + e] = 1 + half * 0x1p-10f;
        rows[size_t{4} * dim + e] = 1 + (half - 384) * 0x1p-7f;
      }
      for (const NumberKind& kind : KindsOf(to)) {
        ForEachTarget([&](SimdTarget simd) {
          ExpectStored(simd, rows, dim, to, kind, "all");
        });
      }
    }
  }
}

Test(requantize, what_is_no_number_and_what_no_step_has_is_defined) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<std::vector<float>> special = {
      {0.0f, 0.0f},        {-0.0f, 0.0f},    {3.3f, 3.3f},
      {-1e6f, -1e6f},      {kNaN, 1.0f},     {1.0f, kInf},
      {-kInf, kNaN},       {kMax, -kMax},    {1e-40f, -1e-41f},
      {1e-44f, 3e-45f},    {1e30f, 1.0f},    {65504.0f, -65520.0f},
      {7e4f, 7.1e4f},      {-7e4f, 7e4f},    {1.0f, 1.00001f},
      {8.5e6f, 1.0f},      {-8.5e6f, 3.0f},  {4.0f, -4.0f},
      {-4.0f, 4.0f},       {1e-6f, -3e-6f},  {2e-38f, -2e-38f},
      {448.0f, 464.0f},    {-480.0f, 1e-3f}, {6e4f, 57345.0f},
      {1000.0f, 1000.01f}, {3e38f, 2.9e38f}, {kMax, 0.0f}};
  constexpr uint32_t kDim = 64;
  std::vector<float> rows;
  for (size_t s = 0; s < special.size(); ++s) {
    for (uint32_t e = 0; e < kDim; ++e) {
      // The second kind is in one place, or in every other one.
      const bool second = s % 2 == 0 ? e % 2 == 1 : e == 37;
      rows.push_back(special[s][second ? 1 : 0]);
    }
  }
  for (DType to : kTo) {
    for (const NumberKind& kind : KindsOf(to)) {
      ForEachTarget([&](SimdTarget simd) {
        ExpectStored(simd, rows, kDim, to, kind, "special");
      });
    }
  }
}

// The kernel reads the rows back, too.
Test(requantize, errs_by_half_a_step_at_most) {
  Random random(TestSeed("requantize/half_a_step"));
  constexpr uint32_t kDim = 128, kRows = 200;
  const std::vector<float> rows = Draw(random, kRows, kDim);
  for (DType to : kTo) {
    for (const NumberKind& kind : KindsOf(to)) {
      if (kind.stays) continue;  // the caller gives the range
      const Stored stored(to, kind, kRows, kDim);
      RequantizeRowsArgs args;
      args.from[0] = SourceOf(rows, kDim);
      args.to[0] = stored.source;
      args.end = kRows;
      RequantizeRows(SimdTargetAt(0), args);
      const Stored again(DType::kF32, {false, false}, kRows, kDim);
      args.from[0] = stored.source;
      args.to[0] = again.source;
      RequantizeRows(SimdTargetAt(0), args);
      double most = 0.0;  // as a part of the bound
      for (uint32_t i = 0; i < kRows * kDim; ++i) {
        const uint32_t r = i / kDim;
        oracle_numbers x = NumbersFor(stored);
        if (kind.scale) {
          x.scale = static_cast<float>(stored.Number(stored.scales, r));
        }
        float got;
        std::memcpy(&got, again.rows.data() + sizeof(got) * i, sizeof(got));
        const double error = std::abs(double{got} - double{rows[i]});
        const double bound = oracle_most_error(
            Public(to), &x, rows.data() + r * kDim, kDim, i % kDim);
        cr_assert(error <= bound, "%s of %s: %.9g for %.9g, more than %.9g off",
                  InfoOf(to).name, InfoOf(kind.dtype).name, double{got},
                  double{rows[i]}, bound);
        if (bound > 0) most = std::max(most, error / bound);
      }
      // The bound is no wider than necessary.
      cr_assert(to == DType::kF32 || most > 0.9, "%s: %.3g of the bound",
                InfoOf(to).name, most);
    }
  }
}

}  // namespace
}  // namespace kvevict
