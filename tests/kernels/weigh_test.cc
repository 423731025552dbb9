// Weighed scores have the formula's own bits on every target.
#include "core/kernels/weigh.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Each operation rounds to f32, which double does exactly for one operation.
float Expected(float score, float epsilon, float weight) {
  if (score == kInfinity) return score;
  const auto sum = static_cast<float>(double{score} + double{epsilon});
  return static_cast<float>(double{sum} * double{weight});
}

std::vector<float> Weigh(SimdTarget simd, const std::vector<float>& scores,
                         const std::vector<float>& weights, float epsilon) {
  const size_t bytes = scores.size() * sizeof(float);
  GuardedPages in(bytes), out(bytes);
  std::memcpy(in.data(), weights.data(), bytes);
  std::memcpy(out.data(), scores.data(), bytes);
  auto* const weighed = reinterpret_cast<float*>(out.data());
  WeighScores(simd, reinterpret_cast<const float*>(in.data()), scores.size(),
              epsilon, weighed);
  return std::vector<float>(weighed, weighed + scores.size());
}

void ExpectWeighed(SimdTarget simd, const std::vector<float>& scores,
                   const std::vector<float>& weights, float epsilon) {
  const std::vector<float> got = Weigh(simd, scores, weights, epsilon);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float want = Expected(scores[i], epsilon, weights[i]);
    cr_assert((std::isnan(want) && std::isnan(got[i])) || got[i] == want,
              "%s, %zu of %zu: (%.9g + %.9g) * %.9g is %.9g, not %.9g",
              simd.name, i, scores.size(), scores[i], epsilon, weights[i],
              got[i], want);
  }
}

TestSuite(weigh);

Test(weigh, is_the_formula_whatever_the_length) {
  Random random(TestSeed("weigh/is_the_formula_whatever_the_length"));
  for (size_t n = 1; n <= 70; ++n) {
    std::vector<float> scores(n), weights(n);
    for (size_t i = 0; i < n; ++i) {
      scores[i] = random.Gaussian();
      weights[i] = random.Gaussian();
    }
    const float epsilon = n % 3 == 0 ? 0.0f : 0.37f;
    ForEachTarget([&](SimdTarget simd) {
      ExpectWeighed(simd, scores, weights, epsilon);
    });
  }
}

Test(weigh, leaves_infinity_and_nothing_else) {
  const float kinds[] = {0.0f, -0.0f, 1.5f, -2.0f, kInfinity, -kInfinity, kNan};
  std::vector<float> scores, weights;
  for (float score : kinds) {
    for (float weight : kinds) {
      scores.push_back(score);
      weights.push_back(weight);
    }
  }
  ForEachTarget([&](SimdTarget simd) {
    ExpectWeighed(simd, scores, weights, 0.0f);
    ExpectWeighed(simd, scores, weights, 2.0f);
  });
}

}  // namespace
}  // namespace kvevict
