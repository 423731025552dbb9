// Scores raised to their mean, against double precision, with the same bits on every
// target.
#include "core/kernels/raise_to_mean.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/scores.h"

namespace kvevict {
namespace {

constexpr size_t kSizes[] = {0,   1,   2,   3,   7,   8,   9,    31,  33,
                             255, 256, 257, 300, 511, 512, 1000, 4099};

std::vector<float> Raise(SimdTarget simd, const std::vector<float>& scores) {
  GuardedPages pages(scores.size() * sizeof(float));
  auto* const floats = reinterpret_cast<float*>(pages.data());
  std::memcpy(floats, scores.data(), scores.size() * sizeof(float));
  RaiseToMean(simd, floats, scores.size());
  return std::vector<float>(floats, floats + scores.size());
}

TestSuite(raise_to_mean);

Test(raise_to_mean, matches_the_oracle_whatever_the_length) {
  Random random(TestSeed("raise_to_mean/matches_the_oracle"));
  for (size_t n : kSizes) {
    std::vector<float> scores(n);
    double magnitude = 0.0;
    for (float& score : scores) {
      score = random.Gaussian();
      magnitude += std::abs(score) / static_cast<double>(n);
    }
    std::vector<double> expected(scores.begin(), scores.end());
    oracle_raise_to_mean(expected.data(), static_cast<uint32_t>(n));
    // A sum of n / 256 terms, 8 of a tree, and the quotient.
    const double error =
        (static_cast<double>(n) / 256 + 10) * 0x1p-24 * magnitude;
    const std::vector<float> first = Raise(SimdTargetAt(0), scores);
    size_t n_raised = 0;
    for (size_t i = 0; i < n; ++i) {
      cr_assert(std::abs(first[i] - expected[i]) <= error,
                "%zu of %zu: %.9g, not %.9g", i, n, first[i], expected[i]);
      n_raised += first[i] != scores[i];
    }
    cr_assert(n < 7 || (n_raised > n / 4 && n_raised < n), "%zu of %zu",
              n_raised, n);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> raised = Raise(simd, scores);
      cr_assert(n == 0 || std::memcmp(raised.data(), first.data(),
                                      n * sizeof(float)) == 0,
                "%s: other bits, %zu", simd.name, n);
    });
  }
}

Test(raise_to_mean, does_nothing_without_a_finite_mean) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kinds[] = {kInfinity, -kInfinity,
                         std::numeric_limits<float>::quiet_NaN()};
  ForEachTarget([&](SimdTarget simd) {
    for (float kind : kinds) {
      const std::vector<float> scores = {1.0f, -2.0f, kind, 0.0f, 5.0f};
      const std::vector<float> raised = Raise(simd, scores);
      cr_assert(
          std::memcmp(raised.data(), scores.data(), 5 * sizeof(float)) == 0,
          "%s: %g", simd.name, kind);
    }
  });
}

}  // namespace
}  // namespace kvevict
