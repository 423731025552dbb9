// Keys against a direction in double precision, in any layout and on every target.
#include "core/kernels/key_filter.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

constexpr uint32_t kTokens[] = {1, 2, 3, 4, 5, 7, 8, 9, 13};

std::vector<float> Filter(SimdTarget simd, const std::vector<float>& rows,
                          const std::vector<float>& filter,
                          const RowLayout& layout) {
  const auto dim = static_cast<uint32_t>(filter.size());
  const RowStore store(rows, dim, layout);
  const auto n = static_cast<uint32_t>(rows.size() / dim);
  GuardedPages given(dim * sizeof(float));
  std::memcpy(given.data(), filter.data(), dim * sizeof(float));
  GuardedPages out(n * sizeof(float));
  GuardedPages scratch(KeyFilterScratchFloats(1, dim) * sizeof(float));
  std::memset(scratch.data(), 0xff,
              KeyFilterScratchFloats(1, dim) * sizeof(float));
  auto* const scores = reinterpret_cast<float*>(out.data());
  FilterKeys(simd, {store.source(), 0, n, dim,
                    reinterpret_cast<const float*>(given.data()), scores,
                    reinterpret_cast<float*>(scratch.data())});
  return std::vector<float>(scores, scores + n);
}

std::vector<float> DrawFilter(Random& random, uint32_t dim) {
  return DrawKeys(random, DType::kF32, 1, dim);
}

TestSuite(key_filter);

Test(key_filter, matches_the_oracle) {
  Random random(TestSeed("key_filter/matches_the_oracle"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      const uint32_t n = kTokens[random.Below(std::size(kTokens))];
      const std::vector<float> rows = DrawKeys(random, dtype, n, dim);
      const std::vector<float> filter = DrawFilter(random, dim);
      std::vector<double> expected(n), bounds(n);
      oracle_key_filter(rows.data(), n, dim, filter.data(), expected.data(),
                        bounds.data());
      const RowLayout layout = AnyLayout(random, dtype);
      ForEachTarget([&](SimdTarget simd) {
        const std::vector<float> scores = Filter(simd, rows, filter, layout);
        for (uint32_t t = 0; t < n; ++t) {
          cr_assert(std::abs(scores[t] - expected[t]) <= bounds[t],
                    "%s, dtype %d, dim %u, token %u of %u: %.9g, expected %.9g "
                    "to %.3g",
                    simd.name, static_cast<int>(dtype), dim, t, n, scores[t],
                    expected[t], bounds[t]);
        }
      });
    }
  }
}

// Each affects its own row only.
Test(key_filter, nan_and_infinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> scores =
        Filter(simd, {0, 0, 1, 2, kInfinity, 1, 1, -kInfinity, kNan, 0, 3, 4},
               {2, -1}, Packed());
    cr_assert(scores[0] == 0.0f && scores[1] == 0.0f, "%s", simd.name);
    cr_assert(scores[2] == -kInfinity && scores[3] == -kInfinity, "%s",
              simd.name);
    cr_assert(std::isnan(scores[4]) && scores[5] == -2.0f, "%s", simd.name);
  });
}

}  // namespace
}  // namespace kvevict
