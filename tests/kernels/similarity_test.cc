// The similarity of blocks of keys, against double precision, in any layout and on
// every target.
#include "core/kernels/similarity.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/targets.h"

namespace kvevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUnits = 0x1p24;

struct Case {
  uint32_t dim;
  uint32_t first;  // keys before those that are compared
  uint32_t n_blocks;
  uint32_t block;
  std::vector<uint32_t> others;

  uint32_t n_tokens() const { return n_blocks * block; }
};

std::vector<int64_t> Sum(SimdTarget simd, const Case& c,
                         const std::vector<float>& rows,
                         const RowLayout& layout) {
  const RowStore store(rows, c.dim, layout);
  const size_t n_bytes =
      (SimilarityScratchBytes(c.n_tokens(), c.dim) + 7) / 8 * 8;
  GuardedPages scratch(n_bytes);
  std::memset(scratch.data(), 0xff, n_bytes);
  GuardedPages out(c.others.size() * sizeof(int64_t));
  auto* const sums = reinterpret_cast<int64_t*>(out.data());
  SumSimilarity(simd, {store.source(), c.first, c.n_tokens(), c.dim, c.block,
                       c.others.data(), static_cast<uint32_t>(c.others.size()),
                       sums, scratch.data()});
  return {sums, sums + c.others.size()};
}

// Sums, and how far f32 may be off: entries near their row's mean may count or not.
struct Wanted {
  double sum = 0.0;
  double doubt = 0.0;
};

std::vector<Wanted> Naive(const Case& c, const std::vector<float>& rows) {
  const uint32_t n = c.n_tokens();
  std::vector<double> u(size_t{n} * c.dim);
  for (uint32_t t = 0; t < n; ++t) {
    const float* const row = rows.data() + size_t{c.first + t} * c.dim;
    double square = 0x1p-23;
    for (uint32_t e = 0; e < c.dim; ++e) square += double{row[e]} * row[e];
    for (uint32_t e = 0; e < c.dim; ++e) {
      const bool is_finite =
          square <= double{std::numeric_limits<float>::max()};
      u[size_t{t} * c.dim + e] = is_finite ? row[e] / std::sqrt(square) : 0.0;
    }
  }
  // The error of a dot product of f32 directions, each off by its norm's sum.
  const double off = (3.0 * c.dim + 8) * 0x1p-24;
  std::vector<bool> is_other(c.n_blocks, false);
  for (const uint32_t k : c.others) is_other[k] = true;
  std::vector<Wanted> wanted;
  for (const uint32_t k : c.others) {
    Wanted block;
    for (uint32_t i = k * c.block; i < (k + 1) * c.block; ++i) {
      std::vector<double> cosines(n, 0.0);
      double mean = 0.0;
      for (uint32_t j = 0; j < n; ++j) {
        for (uint32_t e = 0; j != i && e < c.dim; ++e) {
          cosines[j] += u[size_t{i} * c.dim + e] * u[size_t{j} * c.dim + e];
        }
        mean += cosines[j] / n;
      }
      // Sums of n directions are off by their additions.
      const double mean_off = off + 0x1p-22 + n * 0x1p-24;
      for (uint32_t j = 0; j < n; ++j) {
        if (!is_other[j / c.block]) continue;
        block.doubt += off + 1.0 / kUnits;
        if (std::abs(cosines[j] - mean) <= off + mean_off) {
          block.doubt += std::abs(cosines[j]);
        }
        if (cosines[j] >= mean) block.sum += cosines[j];
      }
    }
    wanted.push_back(block);
  }
  return wanted;
}

void Expect(const char* what, const Case& c, const std::vector<Wanted>& wanted,
            const std::vector<int64_t>& got) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double sum = static_cast<double>(got[i]) / kUnits;
    cr_assert(std::abs(sum - wanted[i].sum) <= wanted[i].doubt,
              "%s, dim %u: block %u of %u is %.9g, not %.9g to %.3g", what,
              c.dim, c.others[i], c.n_blocks, sum, wanted[i].sum,
              wanted[i].doubt);
  }
}

Case Draw(Random& random, uint32_t dim, uint32_t most_tokens) {
  Case c;
  c.dim = dim;
  c.block = 1 + random.Below(9);
  c.first = random.Below(20);
  c.n_blocks = 1 + random.Below(most_tokens / c.block);
  for (uint32_t k = 0; k < c.n_blocks; ++k) {
    if (random.Below(3) != 0) c.others.push_back(k);
  }
  return c;
}

std::vector<float> Keys(Random& random, DType dtype, const Case& c) {
  return DrawKeys(random, dtype, c.first + c.n_tokens(), c.dim);
}

TestSuite(similarity);

Test(similarity, matches_the_oracle) {
  Random random(TestSeed("similarity/matches_the_oracle"));
  for (DType dtype : kKeyDTypes) {
    for (uint32_t dim : kKeyDims) {
      const Case c = Draw(random, dim, dim > 256 ? 40 : dim > 64 ? 300 : 900);
      std::vector<float> rows = Keys(random, dtype, c);
      // Keys without a direction have a cosine of 0 with all keys.
      constexpr float kOdd[] = {kNan, kInfinity, -kInfinity, 0.0f};
      for (uint32_t t = 0; random.Below(3) == 0 && t < c.n_tokens(); t += 7) {
        const float odd = kOdd[random.Below(4)];
        std::fill_n(rows.begin() + size_t{t} * dim, odd == 0.0f ? dim : 1, odd);
      }
      const std::vector<Wanted> wanted = Naive(c, rows);
      const RowLayout layout = AnyLayout(random, dtype);
      ForEachTarget([&](SimdTarget simd) {
        Expect(simd.name, c, wanted, Sum(simd, c, rows, layout));
      });
    }
  }
}

// All keys are alike, in more panels than an i32 has room for at once.
Test(similarity, of_many_keys_in_one_direction) {
  Case c{3, 0, 500, 4, {}};
  for (uint32_t k = 0; k < c.n_blocks; ++k) c.others.push_back(k);
  std::vector<float> rows;
  for (uint32_t t = 0; t < c.n_tokens(); ++t) {
    rows.insert(rows.end(), {3.0f, 0.0f, 0.0f});
  }
  const double cosine = 9.0 / (9.0 + 0x1p-23);
  ForEachTarget([&](SimdTarget simd) {
    for (const int64_t sum : Sum(simd, c, rows, Packed())) {
      const double want = 4.0 * (c.n_tokens() - 1) * cosine;
      cr_assert(std::abs(static_cast<double>(sum) / kUnits - want) < 0.01,
                "%s: %lld", simd.name, static_cast<long long>(sum));
    }
  });
}

}  // namespace
}  // namespace kvevict
