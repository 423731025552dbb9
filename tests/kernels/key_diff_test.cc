// Keys against their mean direction, against double precision, in any layout and on
// every target.
#include "core/kernels/key_diff.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/key_scores.h"

namespace kvevict {
namespace {

constexpr uint32_t kTokens[] = {1, 2,  3,   4,   5,   7,   8,
                                9, 13, 255, 256, 257, 1031};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Diffs(SimdTarget simd, const std::vector<float>& rows,
                         uint32_t dim, const RowLayout& layout) {
  const RowStore store(rows, dim, layout);
  const auto n = static_cast<uint32_t>(rows.size() / dim);
  GuardedPages out(n * sizeof(float));
  GuardedPages scratch(KeyDiffScratchFloats(dim) * sizeof(float));
  std::memset(scratch.data(), 0xff, KeyDiffScratchFloats(dim) * sizeof(float));
  auto* const diffs = reinterpret_cast<float*>(out.data());
  ComputeKeyDiffs(simd, {store.source(), n, dim, diffs,
                         reinterpret_cast<float*>(scratch.data())});
  return std::vector<float>(diffs, diffs + n);
}

TestSuite(key_diff);

Test(key_diff, matches_the_oracle) {
  Random random(TestSeed("key_diff/matches_the_oracle"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      const uint32_t n = kTokens[random.Below(std::size(kTokens))];
      const std::vector<float> rows = DrawKeys(random, dtype, n, dim);
      std::vector<double> expected(n), bounds(n);
      oracle_key_diff(rows.data(), n, dim, expected.data(), bounds.data());
      ForEachTarget([&](SimdTarget simd) {
        const std::vector<float> diffs = Diffs(simd, rows, dim, Packed(dtype));
        for (uint32_t t = 0; t < n; ++t) {
          cr_assert(std::abs(diffs[t] - expected[t]) <= bounds[t],
                    "%s, dtype %d, dim %u, token %u of %u: %.9g, expected %.9g "
                    "to %.3g",
                    simd.name, static_cast<int>(dtype), dim, t, n, diffs[t],
                    expected[t], bounds[t]);
        }
      });
    }
  }
}

Test(key_diff, does_not_depend_on_the_layout) {
  Random random(TestSeed("key_diff/does_not_depend_on_the_layout"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      const std::vector<float> rows = DrawKeys(random, dtype, 11, dim);
      ForEachTarget([&](SimdTarget simd) {
        const std::vector<float> packed = Diffs(simd, rows, dim, Packed(dtype));
        for (const RowLayout& layout : EveryLayout(dtype)) {
          cr_assert(SameBits(Diffs(simd, rows, dim, layout), packed),
                    "%s, dtype %d, dim %u", simd.name, static_cast<int>(dtype),
                    dim);
        }
      });
    }
  }
}

Test(key_diff, is_the_same_on_every_target_with_fused_arithmetic) {
  Random random(TestSeed("key_diff/is_the_same_on_every_target"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      const std::vector<float> rows = DrawKeys(random, dtype, 300, dim);
      std::vector<float> first;
      ForEachTarget([&](SimdTarget simd) {
        if (!HasFusedArithmetic(simd)) return;
        const std::vector<float> diffs = Diffs(simd, rows, dim, Packed(dtype));
        if (first.empty()) first = diffs;
        cr_assert(SameBits(diffs, first), "%s, dtype %d, dim %u", simd.name,
                  static_cast<int>(dtype), dim);
      });
    }
  }
}

Test(key_diff, keys_without_a_direction) {
  ForEachTarget([&](SimdTarget simd) {
    // All zero: nothing to tell them by.
    for (const float v : Diffs(simd, std::vector<float>(7 * 3), 3, Packed())) {
      cr_assert(v == 0.0f, "%s: %g", simd.name, v);
    }
    // A mean of nothing, and a zero among others.
    for (const float v : Diffs(simd, {1, 2, -1, -2}, 2, Packed())) {
      cr_assert(v == 0.0f, "%s: %g", simd.name, v);
    }
    const std::vector<float> some =
        Diffs(simd, {3, 4, 0, 0, 6, 8}, 2, Packed());
    cr_assert(std::abs(some[0] + 1.0f) < 1e-6f, "%s: %g", simd.name, some[0]);
    cr_assert(some[1] == 0.0f && some[2] == some[0], "%s", simd.name);
  });
}

Test(key_diff, equal_keys_score_alike) {
  Random random(TestSeed("key_diff/equal_keys_score_alike"));
  const std::vector<float> one = DrawKeys(random, DType::kF32, 1, 70);
  std::vector<float> rows;
  for (int t = 0; t < 259; ++t) rows.insert(rows.end(), one.begin(), one.end());
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> diffs = Diffs(simd, rows, 70, Packed());
    for (const float v : diffs) {
      cr_assert(v == diffs[0] && std::abs(v + 1.0f) < 1e-5f, "%s: %g",
                simd.name, v);
    }
  });
}

// They are NaN, and the others are what they are without them.
Test(key_diff, nan_and_infinity_stay_apart) {
  Random random(TestSeed("key_diff/nan_and_infinity_stay_apart"));
  constexpr uint32_t kDim = 20;
  const std::vector<float> good = DrawKeys(random, DType::kF32, 9, kDim);
  std::vector<double> expected(9), bounds(9);
  oracle_key_diff(good.data(), 9, kDim, expected.data(), bounds.data());
  for (const float bad : {kNan, kInfinity, -kInfinity, 1e30f}) {
    std::vector<float> rows = good;
    const std::vector<float> row(good.begin(), good.begin() + kDim);
    rows.insert(rows.begin() + 5 * kDim, row.begin(), row.end());
    rows[5 * kDim + 3] = bad;
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> diffs = Diffs(simd, rows, kDim, Packed());
      for (uint32_t t = 0; t < 10; ++t) {
        const uint32_t place = t < 5 ? t : t - 1;
        cr_assert(t == 5
                      ? std::isnan(diffs[t])
                      : std::abs(diffs[t] - expected[place]) <= bounds[place],
                  "%s, %g: token %u is %g", simd.name, bad, t, diffs[t]);
      }
    });
  }
}

}  // namespace
}  // namespace kvevict
