// Ranks against later tokens in double precision, in any layout and on every
// target.
#include "core/kernels/lag.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One kind of rows.
struct Tensor {
  uint32_t dim;
  RowLayout layout;
  std::vector<float> rows;  // [n_tokens, dim]

  double At(uint32_t token, uint32_t channel) const {
    return rows[size_t{token} * dim + channel];
  }
};

struct Case {
  uint32_t n_tokens;
  uint32_t n_sink;
  uint32_t partition;
  Tensor keys;
  Tensor values;
  bool ranks = true;
};

Tensor DrawTensor(Random* random, DType dtype, uint32_t dim, uint32_t n) {
  Tensor tensor = {dim, {}, std::vector<float>(size_t{n} * dim)};
  tensor.layout = AnyLayout(*random, dtype);
  for (uint32_t i = 0; i < tensor.rows.size(); ++i) {
    // Channels have many sizes, and some lie far from 0.
    const uint32_t channel = i % dim;
    tensor.rows[i] = random->Gaussian() * static_cast<float>(1 + channel % 5) +
                     (channel % 7 == 3 ? 20.0f : 0.0f);
  }
  tensor.rows = RoundTo(dtype, tensor.rows);
  return tensor;
}

std::vector<float> Score(SimdTarget simd, const Case& c) {
  const RowStore keys(c.keys.rows, c.keys.dim, c.keys.layout);
  const RowStore values(c.values.rows, c.values.dim, c.values.layout);
  GuardedPages scratch(LagScratchBytes(c.keys.dim, c.values.dim, c.partition));
  GuardedPages out(c.n_tokens * sizeof(float));
  auto* const scores = reinterpret_cast<float*>(out.data());
  ComputeLagScores(simd, {keys.source(), values.source(), c.keys.dim,
                          c.values.dim, c.n_tokens, c.n_sink, c.partition,
                          c.ranks, scratch.data(), scores});
  return std::vector<float>(scores, scores + c.n_tokens);
}

// A number and how far the kernel's may be from it.
struct Bounded {
  double value;
  double error;
};

constexpr double kUnit = 0x1p-24;

// The deviation of a row against the partition that begins at `next`.
//
// x' - 1/2 comes of four roundings, so it is off by u (4 |x' - 1/2| + 2). Its sum
// and sum of squares are added in at most 12 + dim / 128 steps.
Bounded Spread(const Tensor& t, uint32_t token, uint32_t next, uint32_t n) {
  double sum = 0.0, squares = 0.0, sum_size = 0.0;
  double sum_error = 0.0, squares_error = 0.0;
  std::vector<double> all;
  for (uint32_t c = 0; c < t.dim; ++c) {
    double least = kInfinity, greatest = -kInfinity;
    for (uint32_t i = next; i < next + n; ++i) {
      least = std::fmin(least, t.At(i, c));
      greatest = std::fmax(greatest, t.At(i, c));
    }
    const double range = greatest - least;
    const bool has_range = range > 0x1p-128 && range < 3.4e38;
    const double x =
        has_range ? (t.At(token, c) - least) / range : t.At(token, c) * 0.0;
    const double v = std::abs(x - 0.5);
    const double error = kUnit * (4 * v + 2);
    all.push_back(x);
    sum += x;
    sum_size += v;
    sum_error += error;
    squares += v * v;
    squares_error += 2 * v * error;
  }
  const double mean = sum / t.dim;
  double rest = 0.0;
  for (double x : all) rest += (x - mean) * (x - mean);
  const double n_steps = 14 + t.dim / 128.0;
  sum_error += n_steps * kUnit * sum_size;
  squares_error += n_steps * kUnit * squares;
  const double error =
      squares_error +
      2 * sum_size / t.dim * (sum_error + 2 * kUnit * sum_size) + kUnit * rest;
  const double scale = t.dim == 1 ? 0.0 : 1.0 / (t.dim - 1);
  const double spread = std::sqrt(rest * scale);
  return {spread, std::sqrt((rest + error) * scale) -
                      std::sqrt(std::max(0.0, rest - error) * scale) +
                      4 * kUnit * spread};
}

// The softmax over those that are numbers. A weight is off by its deviation's error
// and the greatest one's, by Exp2, and by a sum of n / 16 + 4 steps and a division.
std::vector<Bounded> Weights(const Tensor& t, uint32_t first, uint32_t n) {
  std::vector<Bounded> weights;
  double greatest = 0.0, most_error = 0.0;
  for (uint32_t i = 0; i < n; ++i) {
    weights.push_back(Spread(t, first + i, first + n, n));
    if (!std::isfinite(weights[i].value)) {
      weights[i].value = kNan;
      continue;
    }
    greatest = std::max(greatest, weights[i].value);
    most_error = std::max(most_error, weights[i].error);
  }
  double sum = 0.0;
  for (Bounded& weight : weights) {
    weight.value = std::exp(weight.value - greatest);
    if (!std::isnan(weight.value)) sum += weight.value;
  }
  for (Bounded& weight : weights) {
    weight.value /= sum;
    weight.error = weight.value * (4 * most_error + 1e-6 + n / 16 * kUnit);
  }
  return weights;
}

// The numbers that rank the tokens of every ranked partition, end to end.
std::vector<Bounded> RankedBy(const Case& c) {
  const uint32_t n = c.partition;
  const uint32_t n_sink = std::min(c.n_sink, c.n_tokens);
  std::vector<Bounded> all;
  for (uint32_t first = n_sink; first + 2 * n <= c.n_tokens; first += n) {
    const std::vector<Bounded> keys = Weights(c.keys, first, n);
    const std::vector<Bounded> values = Weights(c.values, first, n);
    for (uint32_t i = 0; i < n; ++i) {
      all.push_back({(keys[i].value + values[i].value) / 2,
                     (keys[i].error + values[i].error) / 2});
    }
  }
  return all;
}

// Each score is a rank that the bounds allow.
void ExpectPlaces(const Case& c, const std::vector<Bounded>& ranked_by,
                  const std::vector<float>& scores, const char* what) {
  const uint32_t n = c.partition;
  const uint32_t n_sink = std::min(c.n_sink, c.n_tokens);
  const uint32_t n_ranked = c.n_tokens - n_sink;
  for (uint32_t t = 0; t < c.n_tokens; ++t) {
    double expected = 1.0;
    if (t >= n_sink && n_ranked / n < 2) {
      expected = (t - n_sink) / static_cast<double>(n_ranked);
    } else if (t >= n_sink && (t - n_sink) / n + 1 < n_ranked / n) {
      continue;
    }
    cr_assert(std::abs(scores[t] - expected) <= 2 * kUnit,
              "%s: token %u of %u scores %.9g, not %.9g", what, t, c.n_tokens,
              scores[t], expected);
  }
  for (uint32_t p = 0; p + 1 < n_ranked / n; ++p) {
    const uint32_t first = n_sink + p * n;
    const std::span both = std::span(ranked_by).subspan(size_t{p} * n, n);
    for (uint32_t i = 0; i < n; ++i) {
      const float score = scores[first + i];
      if (std::isnan(both[i].value)) {
        cr_assert(std::isnan(score), "%s: token %u is a number", what,
                  first + i);
        continue;
      }
      uint32_t n_lower = 0, n_higher = 0;
      for (const Bounded& other : both) {
        const double apart = both[i].value - other.value;
        const double error = both[i].error + other.error;
        n_lower += std::isnan(other.value) || apart > error;
        n_higher += apart < -error;
      }
      const double place = static_cast<double>(score) * n;
      cr_assert(place >= n_lower - 1e-3 && place <= n - 1 - n_higher + 1e-3 &&
                    std::abs(place - std::round(place)) < 1e-3,
                "%s: token %u is at place %.9g of %u, not in [%u, %u]", what,
                first + i, place, n, n_lower, n - 1 - n_higher);
    }
  }
}

void ExpectPlacesOnEveryTarget(const Case& c) {
  const std::vector<Bounded> ranked_by = RankedBy(c);
  ForEachTarget([&](SimdTarget simd) {
    ExpectPlaces(c, ranked_by, Score(simd, c), simd.name);
  });
}

Case DrawCase(Random* random, uint32_t k_dim, uint32_t v_dim) {
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  Case c = {};
  // Long partitions are ranked by sorting.
  c.partition = 2 + random->Below(random->Below(4) == 0 ? 150 : 20);
  if (random->Below(12) == 0) c.partition = 255 + random->Below(3);
  c.n_sink = random->Below(6);
  c.n_tokens = 1 + random->Below(4 * c.partition + c.n_sink + 3);
  c.keys = DrawTensor(random, kDTypes[random->Below(3)], k_dim, c.n_tokens);
  c.values = DrawTensor(random, kDTypes[random->Below(3)], v_dim, c.n_tokens);
  // Some numbers are not finite.
  for (Tensor* t : {&c.keys, &c.values}) {
    if (random->Below(4) != 0) continue;
    constexpr float kSpecial[] = {kNan, kInfinity, -kInfinity};
    for (float& v : t->rows) {
      if (random->Below(200) == 0) v = kSpecial[random->Below(3)];
    }
  }
  return c;
}

TestSuite(lag);

Test(lag, matches_the_oracle) {
  constexpr uint32_t kDims[] = {1,  2,  3,   7,   15,  16,  17,  33,  64,
                                80, 96, 127, 128, 129, 160, 256, 300, 1031};
  Random random(TestSeed("lag/matches_the_oracle"));
  for (uint32_t k_dim : kDims) {
    for (int turn = 0; turn < 6; ++turn) {
      const uint32_t v_dim =
          turn % 3 == 0 ? kDims[random.Below(std::size(kDims))] : k_dim;
      const Case c = DrawCase(&random, k_dim, v_dim);
      ExpectPlacesOnEveryTarget(c);
    }
  }
}

// Without ranks a score is the number that ranks it.
Test(lag, numbers_that_places_go_by_match_the_oracle) {
  Random random(TestSeed("lag/numbers_that_places_go_by"));
  for (int turn = 0; turn < 40; ++turn) {
    Case c = DrawCase(&random, 1 + random.Below(130), 1 + random.Below(130));
    const std::vector<Bounded> ranked_by = RankedBy(c);
    c.ranks = false;
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> scores = Score(simd, c);
      const uint32_t n_sink = std::min(c.n_sink, c.n_tokens);
      for (uint32_t i = 0; i < ranked_by.size(); ++i) {
        if (std::isnan(ranked_by[i].value) && std::isnan(scores[n_sink + i])) {
          continue;
        }
        cr_assert(std::abs(scores[n_sink + i] - ranked_by[i].value) <=
                      ranked_by[i].error + 4 * kUnit * ranked_by[i].value,
                  "%s: token %u scores %.9g, not %.9g", simd.name, n_sink + i,
                  scores[n_sink + i], ranked_by[i].value);
      }
      // All others score as with ranks.
      for (uint32_t t = 0; t < c.n_tokens; ++t) {
        if (ranked_by.empty()) break;
        if (t >= n_sink && t - n_sink < ranked_by.size()) continue;
        cr_assert(scores[t] == 1.0f, "%s: token %u scores %.9g", simd.name, t,
                  scores[t]);
      }
    });
  }
}

// Some rows have equal numbers, and some channels no range.
Test(lag, equal_rows_rank_in_order) {
  ForEachTarget([&](SimdTarget simd) {
    for (const float number : {0.0f, 3.0f}) {
      Case c = {20, 2, 6, {4, {}, {}}, {9, {}, {}}};
      c.keys.rows.assign(20 * 4, number);
      c.values.rows.assign(20 * 9, number);
      const std::vector<float> scores = Score(simd, c);
      for (uint32_t i = 0; i < 12; ++i) {
        const float expected = static_cast<float>(5 - i % 6) * (1.0f / 6);
        cr_assert(scores[2 + i] == expected, "%s: %g, not %g", simd.name,
                  scores[2 + i], expected);
      }
      cr_assert(scores[14] == 1.0f && scores[19] == 1.0f, "%s", simd.name);
    }
  });
}

Test(lag, token_that_leaves_f32_scores_nan) {
  ForEachTarget([&](SimdTarget simd) {
    Case c = {12, 0, 4, {2, {}, {}}, {2, {}, {}}};
    for (uint32_t i = 0; i < 24; ++i) {
      c.keys.rows.push_back(static_cast<float>(i * i % 7) * 1e-30f);
      c.values.rows.push_back(static_cast<float>(i * i % 11));
    }
    c.keys.rows[2] = 1e30f;
    const std::vector<float> scores = Score(simd, c);
    cr_assert(std::isnan(scores[1]), "%s", simd.name);
    for (uint32_t i : {0, 2, 3, 4, 5, 6, 7}) {
      cr_assert(scores[i] >= 0.0f, "%s: token %u", simd.name, i);
    }
  });
}

}  // namespace
}  // namespace kvevict
