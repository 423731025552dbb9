// Scores by the share of a list's best: the same bits on every target, near sums in
// double precision.
#include "core/kernels/best_share.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/topk.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Scale(SimdTarget simd, std::vector<float> scores,
                         uint32_t n_forced, uint32_t n_best) {
  std::vector<uint32_t> keys(scores.size());
  ScoresToKeys(simd, scores.data(), scores.size(), keys.data());
  std::fill(keys.end() - n_forced, keys.end(), kForcedKey);
  const auto n = static_cast<uint32_t>(keys.size());
  std::vector<float> in_place = scores;
  ScaleByBestShare(simd, keys.data(), n, n_best, in_place.data(),
                   in_place.data());
  // Keys in place give the same.
  ScaleByBestShare(simd, keys.data(), n, n_best, scores.data(),
                   reinterpret_cast<float*>(keys.data()));
  for (uint32_t i = 0; i < n; ++i) {
    cr_assert(std::isnan(in_place[i])
                  ? (keys[i] & 0x7FFFFFFFu) > 0x7F800000u
                  : keys[i] == std::bit_cast<uint32_t>(in_place[i]),
              "%s, %u of %u", simd.name, i, n);
  }
  return in_place;
}

// Sorts numbers; 1 if scores stay as they are.
double ShareOf(const std::vector<float>& scores, uint32_t n_forced,
               uint32_t n_best) {
  std::vector<double> sorted;
  for (size_t i = 0; i + n_forced < scores.size(); ++i) {
    if (!std::isnan(scores[i])) sorted.push_back(double{scores[i]});
  }
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double best = 0.0, all = 0.0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    all += sorted[i];
    if (i < n_best) best += sorted[i];
  }
  const double share = best / all;
  return n_best > 0 && share > 0.0 && std::isfinite(share) ? share : 1.0;
}

void ExpectScaled(const std::vector<float>& scores, uint32_t n_forced,
                  uint32_t n_best) {
  const double share = ShareOf(scores, n_forced, n_best);
  const std::vector<float> first =
      Scale(SimdTargetAt(0), scores, n_forced, n_best);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> got = Scale(simd, scores, n_forced, n_best);
    for (size_t i = 0; i < scores.size(); ++i) {
      cr_assert_eq(std::bit_cast<uint32_t>(got[i]),
                   std::bit_cast<uint32_t>(first[i]), "%s, %zu of %zu",
                   simd.name, i, scores.size());
      if (!std::isfinite(scores[i])) continue;
      const double want = scores[i] * share;
      cr_assert(std::abs(got[i] - want) <= 3e-6 * std::abs(want),
                "%s, %zu of %zu: %.9g by %.9g is %.9g", simd.name, i,
                scores.size(), scores[i], share, got[i]);
    }
  });
}

TestSuite(best_share);

// Tokens that must stay count in neither sum, but are scaled like the others.
Test(best_share, is_that_of_sorted_scores_whatever_the_length) {
  Random random(TestSeed("best_share/whatever_the_length"));
  for (uint32_t n = 1; n <= 1100; n += n < 70 ? 1 : 103) {
    std::vector<float> scores(n);
    const bool few = random.Below(2) == 0;  // ties
    for (float& s : scores) {
      s = few ? static_cast<float>(1 + random.Below(3))
              : std::abs(random.Gaussian());
      if (random.Below(9) == 0) s = kNan;
    }
    const uint32_t n_forced = random.Below(n + 1);
    for (const uint32_t n_best : {0u, 1u, n / 3, n, 2 * n}) {
      ExpectScaled(scores, n_forced, n_best);
    }
  }
}

// Without a share above 0 the scores and their order stay.
Test(best_share, leaves_scores_without_a_share_alone) {
  for (const std::vector<float>& scores :
       std::vector<std::vector<float>>{{0, 0, 0},
                                       {1, -1, 0},
                                       {kInfinity, 1, 2},
                                       {-kInfinity, 1, 2},
                                       {kNan, kNan},
                                       {5, -3, -4},
                                       {3e38f, 3e38f, 1}}) {
    const std::vector<float> got = Scale(SimdTargetAt(0), scores, 0, 1);
    for (size_t i = 0; i < scores.size(); ++i) {
      cr_expect_eq(std::bit_cast<uint32_t>(got[i]),
                   std::bit_cast<uint32_t>(scores[i]), "%zu of %zu: %g", i,
                   scores.size(), scores[i]);
    }
  }
}

}  // namespace
}  // namespace kvevict
