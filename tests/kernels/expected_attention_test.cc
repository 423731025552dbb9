// Expected attention against double precision, in any layout and on every target.
#include "core/kernels/expected_attention.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/guarded_pages.h"
#include "tests/kernels/key_cases.h"
#include "tests/kernels/random.h"
#include "tests/kernels/row_store.h"
#include "tests/kernels/targets.h"
#include "tests/oracle/expected_attention.h"

namespace kvevict {
namespace {

using Input = oracle::ExpectedAttentionInput;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -77.0f;

// Queries around a mean with a covariance A A' / head_dim, which is used as
// computed: nearly symmetric, as those of engines are.
Input Draw(uint32_t n_tokens, uint32_t dim, uint32_t group, bool spreads,
           DType dtype, Random& random) {
  Input in;
  in.n_tokens = n_tokens;
  in.group = group;
  in.head_dim = dim;
  in.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  in.n_sink = random.Below(6);
  in.sum_steps = 512 / 16 + 4 + 2;
  in.keys.resize(size_t{n_tokens} * dim);
  for (float& v : in.keys) v = random.Gaussian();
  in.keys = RoundTo(dtype, in.keys);
  in.mean.resize(size_t{group} * dim);
  for (float& v : in.mean) v = random.Gaussian();
  if (!spreads) return in;
  in.covariance.resize(size_t{group} * dim * dim);
  for (uint32_t head = 0; head < group; ++head) {
    float* const c = &in.covariance[size_t{head} * dim * dim];
    for (size_t i = 0; i < size_t{dim} * dim; ++i) {
      c[i] = 0.2f * random.Gaussian() / std::sqrt(static_cast<float>(dim));
    }
    for (size_t i = 0; i < dim; ++i) c[i * dim + i] += 1.0f;
  }
  return in;
}

// Heads of mean, covariance and out lie `gap` elements apart.
std::vector<float> Weights(SimdTarget simd, const Input& in,
                           const RowLayout& layout, size_t gap = 0) {
  const RowStore store(in.keys, in.head_dim, layout);
  const RowStore biases(
      in.biases.empty() ? std::vector<float>{0.0f} : in.biases, 1, RowLayout{});
  const size_t dim = in.head_dim;
  const auto spread = [&](const std::vector<float>& from, size_t n) {
    std::vector<float> out(in.group * (n + gap), kNan);
    for (size_t h = 0; h < in.group && !from.empty(); ++h) {
      std::copy_n(&from[h * n], n, &out[h * (n + gap)]);
    }
    return out;
  };
  const std::vector<float> mean = spread(in.mean, dim);
  const std::vector<float> covariance = spread(in.covariance, dim * dim);
  const size_t n = in.n_tokens;
  std::vector<float> out(in.group * (n + gap) + 1, kGuard);
  const size_t scratch_bytes =
      ExpectedAttentionScratchBytes(in.head_dim, in.group).value();
  GuardedPages scratch((scratch_bytes + 63) / 64 * 64);
  std::memset(scratch.data(), 0xff, scratch_bytes);
  ExpectedAttention args;
  args.keys = store.source();
  if (!in.biases.empty()) args.biases = biases.source();
  args.n_tokens = in.n_tokens;
  args.n_sink = in.n_sink;
  args.group = in.group;
  args.head_dim = in.head_dim;
  args.scale = in.scale;
  args.mean = mean.data();
  args.mean_stride = dim + gap;
  args.covariance = in.covariance.empty() ? nullptr : covariance.data();
  args.covariance_stride = dim * dim + gap;
  args.out = out.data();
  args.out_stride = n + gap;
  args.scratch = scratch.data();
  ComputeExpectedAttention(simd, args);
  std::vector<float> weights;
  for (size_t h = 0; h < in.group; ++h) {
    const float* const row = &out[h * (n + gap)];
    weights.insert(weights.end(), row, row + n);
    cr_assert(gap == 0 || row[n] == kGuard, "%s wrote beyond a row", simd.name);
  }
  cr_assert(out.back() == kGuard, "%s wrote beyond", simd.name);
  return weights;
}

void ExpectOracle(const Input& in, const RowLayout& layout, size_t gap = 0) {
  const oracle::ExpectedAttentionResult expected =
      oracle::ExpectedAttention(in);
  ForEachTarget([&](SimdTarget simd) {
    const std::vector<float> got = Weights(simd, in, layout, gap);
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = expected.weights[i];
      if (std::isnan(want)) {
        cr_assert(std::isnan(got[i]), "%s: weight %zu is %g, not NaN",
                  simd.name, i, got[i]);
        continue;
      }
      cr_assert(std::abs(got[i] - want) <= expected.tolerance[i],
                "%s, %s, %u tokens of %u, %u heads, %s covariance: weight %zu "
                "is %.9g, not %.9g, and %.3g is allowed",
                simd.name, layout.name, in.n_tokens, in.head_dim, in.group,
                in.covariance.empty() ? "no" : "a", i, got[i], want,
                expected.tolerance[i]);
    }
  });
}

// Biases that hide slots, all of them or the first ones, and numbers that are not
// finite: a row that sees NaN or +infinity is NaN; -infinity weighs nothing. Sinks are
// not scored.
Input Odd(Random& random, Input in) {
  if (random.Below(3) == 0) {
    const float reach = random.Below(2) == 0 ? 0.5f : 20.0f;
    for (uint32_t t = 0; t < in.n_tokens; ++t) {
      in.biases.push_back(reach * random.Gaussian());
    }
    if (random.Below(2) == 0) {
      std::fill_n(in.biases.begin(), random.Below(in.n_tokens + 1), -kInfinity);
    }
    if (random.Below(4) == 0) in.biases[random.Below(in.n_tokens)] = kNan;
  }
  if (random.Below(4) != 0) return in;
  constexpr float kOdd[] = {kNan, kInfinity, -kInfinity};
  const float odd = kOdd[random.Below(3)];
  const bool in_all = random.Below(3) == 0;
  for (uint32_t h = 0; h < in.group; ++h) {  // no product of 0 and infinity
    in.mean[size_t{h} * in.head_dim] = h % 2 == 0 ? 1.0f : -1.0f;
  }
  for (uint32_t t = random.Below(in.n_tokens); t < in.n_tokens; ++t) {
    in.keys[size_t{t} * in.head_dim] = odd;
    if (!in_all) break;
  }
  return in;
}

TestSuite(expected_attention);

Test(expected_attention, matches_the_oracle) {
  constexpr uint32_t kDims[] = {1,  2,  3,  4,  5,  7,  8,   9,
                                15, 16, 17, 31, 33, 64, 100, 129};
  constexpr uint32_t kTokens[] = {1, 2, 3, 47, 48, 49, 95, 97, 145, 200};
  Random random(TestSeed("expected_attention/matches_the_oracle"));
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (uint32_t dim : kDims) {
      const uint32_t n = kTokens[random.Below(std::size(kTokens))];
      const uint32_t group = 1 + random.Below(4);
      for (const bool spreads : {false, true}) {
        ExpectOracle(Odd(random, Draw(n, dim, group, spreads, dtype, random)),
                     AnyLayout(random, dtype), 5);
      }
    }
    for (uint32_t n : kTokens) {
      ExpectOracle(Odd(random, Draw(n, 24, 2, true, dtype, random)),
                   AnyLayout(random, dtype), 3);
    }
  }
}

// The covariance is too large to be packed.
Test(expected_attention, of_large_heads) {
  Random random(TestSeed("expected_attention/of_large_heads"));
  for (uint32_t dim : {1023u, 1024u, 1025u}) {
    ExpectOracle(Draw(7, dim, 1, true, DType::kBF16, random),
                 Packed(DType::kBF16));
  }
}

// Rows are longer than pieces of the sum, by one and more, and logits are far apart.
Test(expected_attention, of_long_rows) {
  Random random(TestSeed("expected_attention/of_long_rows"));
  for (uint32_t n : {511u, 512u, 513u, 517u, 1100u, 5000u}) {
    Input in = Draw(n, 6, 2, true, DType::kF32, random);
    ExpectOracle(in, Packed(DType::kF32));
    in.scale = 9.0f;
    ExpectOracle(in, Packed(DType::kF32));
  }
}

// Equal rows share equally. A cache of sinks alone scores nothing.
Test(expected_attention, of_equal_rows_and_of_none) {
  Random random(TestSeed("expected_attention/of_equal_rows_and_of_none"));
  for (float value : {0.0f, 1.5f}) {
    Input in = Draw(100, 8, 2, true, DType::kF16, random);
    in.n_sink = 4;
    in.keys.assign(in.keys.size(), value);
    ForEachTarget([&](SimdTarget simd) {
      const std::vector<float> got = Weights(simd, in, Packed(DType::kF16));
      for (size_t i = 0; i < got.size(); ++i) {
        cr_assert(i % 100 < 4 ? got[i] == 0.0f : got[i] == got[5], "%s",
                  simd.name);
      }
      cr_assert(std::abs(got[5] - 1.0f / 96) < 1e-8f, "%s", simd.name);
    });
  }
  for (uint32_t n : {1u, 4u}) {
    Input in = Draw(n, 8, 2, true, DType::kF32, random);
    in.n_sink = 4;
    ForEachTarget([&](SimdTarget simd) {
      for (float v : Weights(simd, in, Packed(DType::kF32))) {
        cr_assert(v == 0.0f, "%s", simd.name);
      }
    });
  }
}

}  // namespace
}  // namespace kvevict
