// Norms of rows against double precision, in any layout and on every target.
#include "core/kernels/row_norm.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

std::vector<float> Norms(SimdTarget simd, const std::vector<float>& rows,
                         uint32_t dim, const RowLayout& layout) {
  const RowStore store(rows, dim, layout);
  const auto n = static_cast<uint32_t>(rows.size() / dim);
  GuardedPages out(n * sizeof(float));
  auto* const norms = reinterpret_cast<float*>(out.data());
  ComputeRowNorms(simd, {store.source(), 0, n, dim, true, norms});
  return std::vector<float>(norms, norms + n);
}

TestSuite(row_norm);

// A sum of dim rounded squares, added in dim / 16 + 4 steps, and its root, which
// halves the relative error.
Test(row_norm, matches_the_oracle) {
  Random random(TestSeed("row_norm/matches_the_oracle"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      std::vector<float> rows(13 * size_t{dim});
      for (float& v : rows)
        v = random.Gaussian() * (random.Below(40) == 0 ? 50 : 1);
      rows = RoundTo(dtype, rows);
      const RowLayout layout = AnyLayout(random, dtype);
      ForEachTarget([&](SimdTarget simd) {
        const std::vector<float> norms = Norms(simd, rows, dim, layout);
        for (size_t t = 0; t < norms.size(); ++t) {
          double sum = 0.0;
          for (uint32_t i = 0; i < dim; ++i) {
            const double v = rows[t * dim + i];
            sum += v * v;
          }
          const double expected = -std::sqrt(sum);
          const double bound = (dim / 16.0 + 6) * 0x1p-24 * -expected;
          cr_assert(std::abs(norms[t] - expected) <= bound,
                    "%s, dtype %d, dim %u: %.9g, expected %.9g", simd.name,
                    static_cast<int>(dtype), dim, norms[t], expected);
        }
      });
    }
  }
}

Test(row_norm, of_some_rows_from_one_on) {
  Random random(TestSeed("row_norm/of_some_rows_from_one_on"));
  std::vector<float> rows(23 * size_t{19});
  for (float& v : rows) v = random.Gaussian();
  for (const RowLayout& layout : EveryLayout(DType::kF32)) {
    const RowStore store(rows, 19, layout);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> all = Norms(simd, rows, 19, layout);
      for (uint32_t first = 0; first <= 23; ++first) {
        const uint32_t n = (23 - first) / 2;
        std::vector<float> norms(n + 1, 7.0f);
        ComputeRowNorms(simd,
                        {store.source(), first, n, 19, false, norms.data()});
        for (uint32_t r = 0; r < n; ++r) {
          cr_assert(norms[r] == -all[first + r], "%s, row %u", simd.name, r);
        }
        cr_assert(norms[n] == 7.0f, "%s: one norm too many", simd.name);
      }
    });
  }
}

Test(row_norm, nan_and_infinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> norms =
        Norms(simd,
              {0.0f, -0.0f, 3.0f, 4.0f, kInfinity, 1.0f, -kInfinity,
               std::numeric_limits<float>::quiet_NaN(), 1e30f, 1.0f},
              2, RowLayout());
    cr_assert(norms[0] == 0.0f && norms[1] == -5.0f, "%s", simd.name);
    cr_assert(norms[2] == -kInfinity && std::isnan(norms[3]), "%s", simd.name);
    cr_assert(norms[4] == -kInfinity, "%s: squares leave f32", simd.name);
  });
}

}  // namespace
}  // namespace kvevict
