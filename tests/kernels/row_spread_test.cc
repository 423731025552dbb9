// Ranges and variances of rows against double precision, in any layout and on every
// target.
#include "core/kernels/row_spread.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr uint32_t kDims[] = {1,  2,  3,  7,   8,   15,  16,  17,  31,  33,
                              64, 80, 96, 127, 129, 256, 257, 300, 576, 1031};

std::vector<float> Spreads(SimdTarget simd, const std::vector<float>& rows,
                           uint32_t dim, const RowLayout& layout,
                           bool is_variance) {
  const RowStore store(rows, dim, layout);
  const auto n = static_cast<uint32_t>(rows.size() / dim);
  GuardedPages out(n * sizeof(float));
  auto* const spreads = reinterpret_cast<float*>(out.data());
  ComputeRowSpreads(simd, {store.source(), 0, n, dim, is_variance, spreads});
  return std::vector<float>(spreads, spreads + n);
}

TestSuite(row_spread);

// A range is exact but for its subtraction. A variance is a difference of two means of
// squares, each a sum of dim / 16 + 4 steps.
Test(row_spread, matches_the_oracle) {
  Random random(TestSeed("row_spread/matches_the_oracle"));
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (uint32_t dim : kDims) {
      std::vector<float> rows(9 * size_t{dim});
      const float shift = random.Gaussian();
      for (float& v : rows) v = shift + random.Gaussian();
      rows = RoundTo(dtype, rows);
      ForEachTarget([&](SimdTarget simd) {
        for (const RowLayout& layout : EveryLayout(dtype)) {
          const auto ranges = Spreads(simd, rows, dim, layout, false);
          const auto variances = Spreads(simd, rows, dim, layout, true);
          for (size_t t = 0; t < ranges.size(); ++t) {
            const auto begin = rows.begin() + t * dim;
            const auto [least, most] = std::minmax_element(begin, begin + dim);
            cr_assert(ranges[t] == *most - *least, "%s, dim %u: %.9g",
                      simd.name, dim, static_cast<double>(ranges[t]));
            double sum = 0.0;
            double squares = 0.0;
            for (uint32_t i = 0; i < dim; ++i) {
              const double v = begin[i];
              sum += v / dim;
              squares += v * v / dim;
            }
            const double bound = 2 * (dim / 16.0 + 6) * 0x1p-24 * squares;
            cr_assert(std::abs(variances[t] - (squares - sum * sum)) <= bound,
                      "%s, dim %u: %.9g, not %.9g", simd.name, dim,
                      static_cast<double>(variances[t]), squares - sum * sum);
          }
        }
      });
    }
  }
}

Test(row_spread, leaves_out_nan) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr uint32_t kDim = 21;
  std::vector<float> rows(3 * kDim, kNaN);
  for (uint32_t i = 0; i < 2 * kDim; ++i) rows[i] = static_cast<float>(i % 7);
  rows[3] = kNaN;               // of row 0, with 6 elsewhere
  rows[kDim + 20] = kInfinity;  // the last of row 1
  ForEachTarget([&](SimdTarget simd) {
    RowLayout packed;
    packed.dtype = DType::kF32;
    const std::vector<float> ranges = Spreads(simd, rows, kDim, packed, false);
    cr_expect(
        ranges[0] == 6.0f && ranges[1] == kInfinity && ranges[2] == -kInfinity,
        "%s: %g %g %g", simd.name, static_cast<double>(ranges[0]),
        static_cast<double>(ranges[1]), static_cast<double>(ranges[2]));
  });
}

}  // namespace
}  // namespace kvevict
