// Scores less the redundancy of their keys: against double precision, in any layout
// and on every target.
#include "core/kernels/redundancy.h"

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

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kScoreWeight = 0.25f;
constexpr float kWeight = 3.0f;

std::vector<float> Subtract(SimdTarget simd, const std::vector<float>& scores,
                            const std::vector<float>& rows, uint32_t dim,
                            float threshold, const RowLayout& layout) {
  const RowStore store(rows, dim, layout);
  const auto n = static_cast<uint32_t>(scores.size());
  GuardedPages out(n * sizeof(float));
  std::memcpy(out.data(), scores.data(), n * sizeof(float));
  // Pages end at their guard, so the memory there is aligned to 8 bytes.
  const size_t n_bytes = (RedundancyScratchBytes(n, dim) + 7) / 8 * 8;
  GuardedPages scratch(n_bytes);
  std::memset(scratch.data(), 0xff, n_bytes);
  auto* const mixed = reinterpret_cast<float*>(out.data());
  SubtractRedundancy(simd, {store.source(), n, dim, threshold, kScoreWeight,
                            kWeight, mixed, scratch.data()});
  return std::vector<float>(mixed, mixed + n);
}

// Multiples of 1/64, whose weighted sums with redundancies round once more.
std::vector<float> DrawScores(Random& random, uint32_t n) {
  std::vector<float> scores(n);
  for (float& score : scores) {
    score = (static_cast<float>(random.Below(129)) - 64.0f) / 64.0f;
  }
  return scores;
}

// A threshold that is not too near to any two keys' cosine.
float DrawThreshold(Random& random, const std::vector<float>& rows, uint32_t n,
                    uint32_t dim) {
  for (int i = 0; i < 1000; ++i) {
    const float threshold =
        0.3f + static_cast<float>(random.Below(4097)) / 10000.0f;
    if (oracle_similarity_gap(rows.data(), n, dim, double{threshold}) > 0) {
      return threshold;
    }
  }
  cr_assert_fail("%u keys of %u elements are near to every threshold", n, dim);
}

void ExpectMixed(const char* what, const std::vector<float>& scores,
                 const std::vector<double>& redundancy,
                 const std::vector<double>& bounds,
                 const std::vector<float>& got) {
  for (size_t t = 0; t < scores.size(); ++t) {
    if (std::isnan(redundancy[t])) {
      cr_assert(std::isnan(got[t]), "%s: token %zu is %g", what, t, got[t]);
      continue;
    }
    const double want =
        scores[t] * double{kScoreWeight} - redundancy[t] * double{kWeight};
    const double most = double{kWeight} * bounds[t] + 0x1p-23 * std::abs(want) +
                        0x1p-23 * double{kWeight} * redundancy[t];
    cr_assert(std::abs(got[t] - want) <= most,
              "%s: token %zu of %zu is %.9g, not %.9g to %.3g", what, t,
              scores.size(), got[t], want, most);
  }
}

TestSuite(redundancy);

// Blocks of rows, panels of keys and pieces of sums are full and partial.
Test(redundancy, matches_the_oracle) {
  constexpr uint32_t kTokens[] = {1,  2,  3,  5,   8,   15,  16,  17, 31,
                                  32, 33, 65, 191, 192, 193, 256, 257};
  Random random(TestSeed("redundancy/matches_the_oracle"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      uint32_t n = kTokens[random.Below(std::size(kTokens))];
      if (dim > 256) n = std::min(n, 65u);
      const std::vector<float> rows = DrawKeys(random, dtype, n, dim);
      const std::vector<float> scores = DrawScores(random, n);
      const float threshold = DrawThreshold(random, rows, n, dim);
      std::vector<double> expected(n), bounds(n);
      oracle_redundancy(rows.data(), n, dim, double{threshold}, expected.data(),
                        bounds.data());
      const RowLayout layout = AnyLayout(random, dtype);
      ForEachTarget([&](SimdTarget simd) {
        char what[96];
        std::snprintf(what, sizeof(what), "%s, dtype %d, dim %u", simd.name,
                      static_cast<int>(dtype), dim);
        ExpectMixed(what, scores, expected, bounds,
                    Subtract(simd, scores, rows, dim, threshold, layout));
      });
    }
  }
}

// Few keys are similar to any, so most rows look through all of them.
Test(redundancy, of_keys_in_all_directions) {
  Random random(TestSeed("redundancy/of_keys_in_all_directions"));
  for (uint32_t n : {1u, 40u, 400u, 801u}) {
    constexpr uint32_t kDim = 24;
    std::vector<float> rows(size_t{n} * kDim);
    for (float& v : rows) v = random.Gaussian();
    const std::vector<float> scores = DrawScores(random, n);
    const float threshold = DrawThreshold(random, rows, n, kDim);
    std::vector<double> expected(n), bounds(n);
    oracle_redundancy(rows.data(), n, kDim, double{threshold}, expected.data(),
                      bounds.data());
    ForEachTarget([&](SimdTarget simd) {
      ExpectMixed(simd.name, scores, expected, bounds,
                  Subtract(simd, scores, rows, kDim, threshold, Packed()));
    });
  }
}

// Targets that first look for similar keys among rounded ones find the same, around
// any threshold, with keys in all directions and in a few.
Test(redundancy, is_the_same_however_many_keys_are_similar) {
  Random random(TestSeed("redundancy/is_the_same_however_many"));
  for (const float spread : {0.0f, 0.3f, 1.0f, 30.0f}) {
    for (const uint32_t dim : {3u, 16u, 100u, 128u, 272u}) {
      const uint32_t n = 150 + random.Below(400);
      std::vector<float> centers(8 * dim), rows(size_t{n} * dim);
      for (float& v : centers) v = random.Gaussian();
      for (uint32_t t = 0; t < n; ++t) {
        const float* const center = &centers[random.Below(8) * dim];
        for (uint32_t e = 0; e < dim; ++e) {
          rows[t * dim + e] = center[e] + spread * random.Gaussian();
        }
      }
      const std::vector<float> scores = DrawScores(random, n);
      for (const float threshold : {0.0f, 0.05f, 0.3f, 0.5f, 0.99f, 1.0f}) {
        std::vector<float> first;
        ForEachTarget([&](SimdTarget simd) {
          if (!HasFusedArithmetic(simd)) return;
          const std::vector<float> mixed =
              Subtract(simd, scores, rows, dim, threshold, Packed());
          if (first.empty()) first = mixed;
          cr_assert(SameBits(mixed, first), "%s: %u keys of %u, above %g",
                    simd.name, n, dim, static_cast<double>(threshold));
        });
      }
    }
  }
}

Test(redundancy, leaves_infinity_and_puts_nan_apart) {
  Random random(TestSeed("redundancy/leaves_infinity_and_puts_nan_apart"));
  constexpr uint32_t kDim = 20, kTokens = 50, kBad = 31;
  const std::vector<float> good = DrawKeys(random, DType::kF32, kTokens, kDim);
  const float threshold = DrawThreshold(random, good, kTokens, kDim);
  std::vector<float> scores = DrawScores(random, kTokens);
  for (const float bad : {kNan, kInfinity, -kInfinity, 1e30f}) {
    std::vector<float> rows = good;
    rows[kBad * kDim + 3] = bad;
    std::vector<float> as_nan = rows;
    as_nan[kBad * kDim + 3] = kNan;
    std::vector<double> expected(kTokens), bounds(kTokens);
    oracle_redundancy(as_nan.data(), kTokens, kDim, double{threshold},
                      expected.data(), bounds.data());
    ForEachTarget([&](SimdTarget simd) {
      std::vector<float> odd = scores;
      odd[7] = odd[kBad] = kInfinity;
      odd[8] = -kInfinity;
      odd[9] = kNan;
      const std::vector<float> mixed =
          Subtract(simd, odd, rows, kDim, threshold, Packed());
      cr_assert(mixed[7] == kInfinity && mixed[kBad] == kInfinity &&
                    mixed[8] == -kInfinity && std::isnan(mixed[9]),
                "%s: %g, %g, %g, %g", simd.name, mixed[7], mixed[kBad],
                mixed[8], mixed[9]);
      ExpectMixed(simd.name, scores, expected, bounds,
                  Subtract(simd, scores, rows, kDim, threshold, Packed()));
    });
  }
}

// Nothing tells the keys apart, so all are equally redundant; the first key is
// so less, by the terms that others leave out there.
Test(redundancy, of_keys_without_a_direction) {
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> zeros =
        Subtract(simd, std::vector<float>(40), std::vector<float>(40 * 3), 3,
                 0.5f, Packed());
    for (const float v : zeros) {
      cr_assert(std::abs(v + kWeight / 40.0f) < 1e-6f, "%s: %g", simd.name, v);
    }
    const std::vector<float> none =
        Subtract(simd, {1, 2}, {kNan, 0, 0, kInfinity}, 2, 0.5f, Packed());
    cr_assert(std::isnan(none[0]) && std::isnan(none[1]), "%s", simd.name);
  });
}

}  // namespace
}  // namespace kvevict
