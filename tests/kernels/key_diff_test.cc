// Keys against their mean direction in double precision, in any layout and on every
// target.
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
  GuardedPages scratch(KeyDiffScratchFloats(1, dim) * sizeof(float));
  std::memset(scratch.data(), 0xff,
              KeyDiffScratchFloats(1, dim) * sizeof(float));
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
      const RowLayout layout = AnyLayout(random, dtype);
      ForEachTarget([&](SimdTarget simd) {
        const std::vector<float> diffs = Diffs(simd, rows, dim, layout);
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

Test(key_diff, keys_without_a_direction) {
  ForEachTarget([&](SimdTarget simd) {
    // All are zero, so nothing tells them apart.
    for (const float v : Diffs(simd, std::vector<float>(7 * 3), 3, Packed())) {
      cr_assert(v == 0.0f, "%s: %g", simd.name, v);
    }
    // The mean is zero, and then a zero is among others.
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

// Such keys score NaN, and the others are as without them.
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

// ---- Block by block ----

struct Blocks {
  uint32_t n_keep;
  uint32_t block;
  Tie tie = Tie::kLower;
};

std::vector<float> BlockDiffs(SimdTarget simd, const std::vector<float>& rows,
                              uint32_t dim, const RowLayout& layout,
                              const Blocks& blocks) {
  const RowStore store(rows, dim, layout);
  const auto n = static_cast<uint32_t>(rows.size() / dim);
  GuardedPages out(n * sizeof(float));
  const size_t n_bytes = KeyDiffBlocksBytes(dim, n);
  GuardedPages scratch(n_bytes);
  std::memset(scratch.data(), 0xff, n_bytes);
  KeyDiffBlocks args;
  args.keys = store.source();
  args.n_tokens = n;
  args.head_dim = dim;
  args.n_keep = blocks.n_keep;
  args.block = blocks.block;
  args.tie = blocks.tie;
  args.out = reinterpret_cast<float*>(out.data());
  args.scratch = scratch.data();
  ComputeKeyDiffBlocks(simd, args);
  return std::vector<float>(args.out, args.out + n);
}

void ExpectBlockDiffs(const std::vector<float>& rows, uint32_t dim,
                      const RowLayout& layout, const Blocks& blocks,
                      const std::vector<double>& expected,
                      const std::vector<double>& bounds) {
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> diffs =
        BlockDiffs(simd, rows, dim, layout, blocks);
    for (uint32_t t = 0; t < diffs.size(); ++t) {
      cr_assert(std::isnan(expected[t])
                    ? std::isnan(diffs[t])
                    : std::abs(diffs[t] - expected[t]) <= bounds[t],
                "%s, dim %u, %u by %u: token %u of %zu: %.9g, not %.9g to %.3g",
                simd.name, dim, blocks.n_keep, blocks.block, t, diffs.size(),
                diffs[t], expected[t], bounds[t]);
    }
  });
}

// Draws keys that f32 tells apart wherever it chooses; few are drawn again. Two
// keys are equally near to their mean.
Test(key_diff, by_blocks_matches_the_oracle) {
  Random random(TestSeed("key_diff/by_blocks_matches_the_oracle"));
  constexpr Blocks kBlocks[] = {{2, 1},    {1, 5},   {7, 3},    {40, 128},
                                {128, 64}, {100, 7}, {2000, 10}};
  uint32_t n_drawn = 0, n_cases = 0;
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : {8u, 17u, 64u, 128u}) {
      for (const Blocks& blocks : kBlocks) {
        const uint32_t n = kTokens[random.Below(std::size(kTokens))];
        std::vector<double> expected(n), bounds(n);
        std::vector<float> rows;
        ++n_cases;
        do {
          cr_assert(++n_drawn < 1000);
          rows = DrawKeys(random, dtype, n, dim);
        } while (!(oracle_key_diff_blocks(rows.data(), n, dim, blocks.n_keep,
                                          blocks.block, 0, expected.data(),
                                          bounds.data()) > 0.0));
        const std::vector<RowLayout> layouts = EveryLayout(dtype);
        ExpectBlockDiffs(rows, dim, layouts[n_cases % layouts.size()], blocks,
                         expected, bounds);
      }
    }
  }
  std::fprintf(stderr, "%u cases drawn %u times\n", n_cases, n_drawn);
}

Test(key_diff, by_blocks_equal_keys_are_chronological) {
  Random random(TestSeed("key_diff/by_blocks_equal_keys"));
  const std::vector<float> one = DrawKeys(random, DType::kF32, 1, 24);
  std::vector<float> rows;
  for (int t = 0; t < 43; ++t) rows.insert(rows.end(), one.begin(), one.end());
  ForEachTarget([&](SimdTarget simd) {
    for (const Tie tie : {Tie::kLower, Tie::kHigher}) {
      const std::vector<float> diffs =
          BlockDiffs(simd, rows, 24, Packed(), {10, 4, tie});
      for (uint32_t t = 0; t < 43; ++t) {
        const bool stays = tie == Tie::kLower ? t < 10 : t >= 33;
        cr_assert((diffs[t] > -1.5f) == stays, "%s: token %u: %g", simd.name, t,
                  diffs[t]);
      }
    }
  });
}

// They score NaN, leave first, and change nothing else.
Test(key_diff, by_blocks_nan_and_infinity_leave_first) {
  Random random(TestSeed("key_diff/by_blocks_nan"));
  constexpr uint32_t kDim = 12, kN = 90;
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    std::vector<double> expected(kN), bounds(kN);
    std::vector<float> rows;
    double gap;
    do {
      rows = DrawKeys(random, DType::kF32, kN, kDim);
      for (uint32_t t : {0u, 3u, 35u, 36u, 60u, 89u}) rows[t * kDim + 5] = bad;
      gap = oracle_key_diff_blocks(rows.data(), kN, kDim, 30, 8, 0,
                                   expected.data(), bounds.data());
    } while (!(gap > 0.0));
    ExpectBlockDiffs(rows, kDim, Packed(), {30, 8}, expected, bounds);
  }
  // There are too few others, so some stay.
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> rows = {kNan, 1, 2, 3, kNan, 1, kNan, 0, kNan, 2};
    for (const float v :
         BlockDiffs(simd, {kNan, kNan, 1, kNan}, 1, Packed(), {2, 1})) {
      cr_assert(std::isnan(v) || v == -1.0f, "%s: %g", simd.name, v);
    }
    const std::vector<float> diffs =
        BlockDiffs(simd, rows, 2, Packed(), {3, 1});
    cr_assert(
        !std::isnan(diffs[1]) && std::isnan(diffs[0]) && std::isnan(diffs[4]),
        "%s", simd.name);
  });
}

}  // namespace
}  // namespace kvevict
