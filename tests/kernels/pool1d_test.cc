// Pooling and reduction against double precision, on every target.
#include "core/kernels/pool1d.h"

#include <criterion/criterion.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/reduce.h"
#include "tests/oracle/scores.h"

namespace kvevict {
namespace {

constexpr size_t kSizes[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   15,
                             16, 17, 31, 33, 63, 64, 65, 127, 131, 259};
constexpr uint32_t kWidths[] = {1, 3, 5, 7, 9, 31, 63, 1023};

// n floats that end at a page nobody may touch.
struct GuardedFloats {
  explicit GuardedFloats(size_t n) : pages(n * sizeof(float)) {}
  float* data() { return reinterpret_cast<float*>(pages.data()); }
  GuardedPages pages;
};

// Mostly weights, as attention makes them; sometimes what it should not make.
float RandomScore(Random& random, bool special) {
  if (special && random.Below(15) == 0) {
    return random.Below(2) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                : std::numeric_limits<float>::infinity();
  }
  return std::exp(3.0f * random.Gaussian());
}

// Sums of n positive terms, each step rounded, and one product with a rounded
// reciprocal.
bool IsNear(float value, double expected, size_t n_terms) {
  if (std::isnan(expected)) return std::isnan(value);
  if (std::isinf(expected)) return value == static_cast<float>(expected);
  return std::abs(value - expected) <=
         static_cast<double>(n_terms + 2) * 0x1p-24 * std::abs(expected);
}

TestSuite(pool1d);

Test(pool1d, matches_the_oracle_at_every_edge) {
  Random random(TestSeed("pool1d/matches_the_oracle_at_every_edge"));
  ForEachTarget([&](SimdTarget simd) {
    for (size_t n : kSizes) {
      for (uint32_t width : kWidths) {
        for (bool special : {false, true}) {
          GuardedFloats in(n);
          std::vector<double> exact(n), expected(n);
          for (size_t i = 0; i < n; ++i) {
            exact[i] = in.data()[i] = RandomScore(random, special);
          }
          for (const PoolKind pool : {PoolKind::kAvg, PoolKind::kMax}) {
            for (const PoolEdge edge : {PoolEdge::kPad, PoolEdge::kShrink}) {
              oracle_policy policy{};
              policy.pool =
                  pool == PoolKind::kAvg ? ORACLE_POOL_AVG : ORACLE_POOL_MAX;
              policy.edge =
                  edge == PoolEdge::kPad ? ORACLE_EDGE_PAD : ORACLE_EDGE_SHRINK;
              policy.pool_width = width;
              oracle_pool(exact.data(), static_cast<uint32_t>(n), &policy,
                          expected.data());
              GuardedFloats out(n);
              Pool1d(simd, in.data(), n, width, pool, edge, out.data());
              for (size_t i = 0; i < n; ++i) {
                const size_t n_terms = pool == PoolKind::kMax ? 0 : width;
                if (!IsNear(out.data()[i], expected[i], n_terms)) {
                  cr_assert_fail("%s: %zu of %zu, width %u: %.9g, not %.9g",
                                 simd.name, i, n, width, out.data()[i],
                                 expected[i]);
                }
              }
            }
          }
        }
      }
    }
  });
}

Test(pool1d, rows_are_reduced_as_the_oracle_says) {
  Random random(TestSeed("pool1d/rows_are_reduced_as_the_oracle_says"));
  ForEachTarget([&](SimdTarget simd) {
    for (size_t n : kSizes) {
      for (size_t n_rows : {1u, 2u, 3u, 8u}) {
        const size_t stride = n + random.Below(5);
        for (bool special : {false, true}) {
          for (int in_place = 0; in_place < 2; ++in_place) {
            const struct {
              Reduce ours;
              kvevict_reduce oracles;
            } kReduces[] = {{Reduce::kMean, KVEVICT_REDUCE_MEAN},
                            {Reduce::kMax, KVEVICT_REDUCE_MAX},
                            {Reduce::kSum, KVEVICT_REDUCE_SUM}};
            for (const auto& reduce : kReduces) {
              GuardedFloats rows((n_rows - 1) * stride + n);
              std::vector<double> expected(n);
              for (size_t i = 0; i < (n_rows - 1) * stride + n; ++i) {
                rows.data()[i] = RandomScore(random, special);
              }
              for (size_t i = 0; i < n; ++i) {
                std::vector<double> terms;
                for (size_t r = 0; r < n_rows; ++r) {
                  terms.push_back(rows.data()[r * stride + i]);
                }
                expected[i] = oracle::Reduce(terms, reduce.oracles);
              }
              GuardedFloats apart(n);
              float* out = in_place != 0 ? rows.data() : apart.data();
              ReduceRows(simd, rows.data(), n_rows, stride, n, reduce.ours,
                         out);
              for (size_t i = 0; i < n; ++i) {
                if (!IsNear(out[i], expected[i], n_rows)) {
                  cr_assert_fail("%s: %zu rows of %zu: %.9g, not %.9g",
                                 simd.name, n_rows, n, out[i], expected[i]);
                }
              }
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvevict
