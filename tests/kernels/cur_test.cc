// Shares of squared norms against double precision.
#include "core/kernels/cur.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  uint32_t window;
  uint32_t n_sink;
  std::vector<float> keys;  // norms
  std::vector<float> values;
};

std::vector<float> Score(const Case& c) {
  const size_t n_bytes = c.keys.size() * sizeof(float);
  GuardedPages scores(n_bytes), values(n_bytes);
  auto* const out = reinterpret_cast<float*>(scores.data());
  auto* const norms = reinterpret_cast<float*>(values.data());
  std::copy(c.keys.begin(), c.keys.end(), out);
  std::copy(c.values.begin(), c.values.end(), norms);
  const auto n = static_cast<uint32_t>(c.keys.size());
  ComputeCurShares({n, c.window, c.n_sink, norms, out});
  return std::vector<float>(out, out + n);
}

// A square counts if it and the token's other one are finite in f32.
bool Counts(const Case& c, size_t t) {
  return std::isfinite(c.keys[t] * c.keys[t]) &&
         std::isfinite(c.values[t] * c.values[t]);
}

std::vector<double> Oracle(const Case& c) {
  const size_t n = c.keys.size();
  std::vector<double> scores(n);
  double total = 0.0;
  for (size_t t = 0; t < n; ++t) {
    double k_sum = 0.0, v_sum = 0.0;
    const size_t first = t / c.window * c.window;
    for (size_t i = first; i < std::min(n, first + c.window); ++i) {
      if (!Counts(c, i)) continue;
      k_sum += double{c.keys[i]} * c.keys[i];
      v_sum += double{c.values[i]} * c.values[i];
    }
    const double k = double{c.keys[t]} * c.keys[t];
    const double v = double{c.values[t]} * c.values[t];
    const bool has_sums = k_sum > 1e-37 && v_sum > 1e-37;
    scores[t] = !Counts(c, t) ? kNan : has_sums ? k / k_sum * (v / v_sum) : 0.0;
    if (Counts(c, t)) total += scores[t];
  }
  for (double& score : scores) score = total == 0.0 ? score * 0 : score / total;
  std::fill_n(scores.begin(), std::min<size_t>(n, c.n_sink), 1.0);
  return scores;
}

// A sum of `window` squares rounds as often, each square once. Then come two
// quotients, their product, and a quotient by a sum of the same accuracy.
void ExpectShares(const Case& c) {
  const std::vector<float> scores = Score(c);
  const std::vector<double> expected = Oracle(c);
  const double bound =
      (4.0 * std::min<size_t>(c.window, c.keys.size()) + 20) * 0x1p-24;
  for (size_t t = 0; t < scores.size(); ++t) {
    const bool is_nan = std::isnan(expected[t]);
    cr_assert(is_nan ? std::isnan(scores[t])
                     : std::abs(scores[t] - expected[t]) <=
                           bound * expected[t] + 1e-37,
              "token %zu of %zu, window %u: %.9g, not %.9g", t, scores.size(),
              c.window, scores[t], expected[t]);
  }
}

Case DrawCase(Random* random, bool special) {
  constexpr float kSpecial[] = {kNan, kInfinity, -kInfinity, 0.0f, 1e20f};
  Case c = {2 + random->Below(random->Below(3) == 0 ? 300 : 20),
            random->Below(6),
            {},
            {}};
  const uint32_t n = 1 + random->Below(5 * c.window);
  for (std::vector<float>* norms : {&c.keys, &c.values}) {
    for (uint32_t t = 0; t < n; ++t) {
      const float norm = -std::abs(random->Gaussian()) * 30.0f;
      const bool is_special = special && random->Below(20) == 0;
      norms->push_back(is_special ? kSpecial[random->Below(5)] : norm);
    }
  }
  return c;
}

TestSuite(cur);

Test(cur, matches_the_oracle) {
  Random random(TestSeed("cur/matches_the_oracle"));
  for (int turn = 0; turn < 400; ++turn) {
    ExpectShares(DrawCase(&random, turn % 4 == 0));
  }
}

Test(cur, zeros_score_zero) {
  Case c = {4, 1, std::vector<float>(11), std::vector<float>(11)};
  std::vector<float> scores = Score(c);
  cr_assert(scores[0] == 1.0f);
  for (size_t t = 1; t < 11; ++t) cr_assert(scores[t] == 0.0f);
  c.keys[5] = c.values[5] = -2.0f;  // all of its window, and of all
  scores = Score(c);
  cr_assert(scores[5] == 1.0f && scores[6] == 0.0f && scores[1] == 0.0f);
}

Test(cur, equal_rows_of_whole_windows_score_alike) {
  const Case c = {4, 0, std::vector<float>(8, -3.0f),
                  std::vector<float>(8, -0.1f)};
  for (const float score : Score(c)) cr_assert(score == 0.125f, "%g", score);
}

}  // namespace
}  // namespace kvevict
