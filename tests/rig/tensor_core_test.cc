// The model of a tensor core against measurements of real ones, and its error
// bound against double precision.
#include "tests/rig/tensor_core.h"

#include <criterion/criterion.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvevict::rig {
namespace {

constexpr int kBF16 = -126;
constexpr int kF16 = -14;

// c + the sum of a[k] b[k], at every place of the result.
float Dot(const TensorCore& core, const std::vector<float>& a,
          const std::vector<float>& b, float c, int least_exponent = kBF16) {
  Matrices m = {};
  for (auto& row : m.a) std::copy(a.begin(), a.end(), row);
  for (auto& column : m.b_columns) std::copy(b.begin(), b.end(), column);
  for (auto& row : m.c) std::fill(row, row + 8, c);
  MultiplyAccumulate(core, least_exponent, m);
  for (const auto& row : m.c) {
    for (const float v : row) {
      cr_expect(v == m.c[0][0] || (std::isnan(v) && std::isnan(m.c[0][0])));
    }
  }
  return m.c[0][0];
}

std::vector<float> Ones(size_t n) { return std::vector<float>(n, 1.0f); }

TestSuite(rig_tensor_core);

// An A100 (github.com/north-numerical-computing/tensor-cores-numerical-behavior,
// issue 2) counts four products of 2^-24 beside 1, but not of 2^-25. An H100 has
// one bit more.
Test(rig_tensor_core, cuts_where_hardware_was_seen_to) {
  const auto four_beside_one = [](const TensorCore& core, float product) {
    return Dot(core, Ones(4), std::vector<float>(4, product), 1.0f);
  };
  cr_expect_eq(four_beside_one(kAmpere, 0x1p-24f), 1.0f + 0x1p-22f);
  cr_expect_eq(four_beside_one(kAmpere, 0x1p-25f), 1.0f);
  cr_expect_eq(four_beside_one(kHopper, 0x1p-25f), 1.0f + 0x1p-23f);
  cr_expect_eq(four_beside_one(kHopper, 0x1p-26f), 1.0f);
  cr_expect_eq(four_beside_one(kToNearest, 0x1p-25f), 1.0f + 0x1p-23f);
}

// Adds eight products at once, or 16: the sum of the first eight is cut before the rest.
Test(rig_tensor_core, adds_some_products_at_once) {
  std::vector<float> b(16, 0.0f);
  b[0] = 0x1p-24f;
  b[8] = 0x1p-24f;
  cr_expect_eq(Dot(kAmpere, Ones(16), b, 1.0f), 1.0f);
  cr_expect_eq(Dot(kHopper, Ones(16), b, 1.0f), 1.0f + 0x1p-23f);
}

// Cuts towards zero on both sides. A product's exponent is the sum of its
// factors', so 2.25 has that of 1.
Test(rig_tensor_core, cuts_towards_zero) {
  for (const TensorCore& core : {kAmpere, kHopper}) {
    for (const float sign : {1.0f, -1.0f}) {
      cr_expect_eq(Dot(core, {1.0f}, {sign * 0x1.8p-24f}, sign), sign);
      cr_expect_eq(Dot(core, {1.0f}, {sign * 0x1.8p-23f}, sign),
                   sign * (1.0f + 0x1p-23f));
    }
    const float unit = std::ldexp(1.0f, -23 - core.n_extra_bits);
    const std::vector<float> a = {1.5f, -1.5f, 1.0f};
    const std::vector<float> b = {1.5f, 1.5f, unit};
    cr_expect_eq(Dot(core, a, b, 0.0f), unit);
    cr_expect_eq(Dot(core, a, {1.5f, 1.5f, unit / 2}, 0.0f), 0.0f);
  }
}

Test(rig_tensor_core, keeps_zeros_subnormals_and_what_is_not_finite) {
  for (const TensorCore& core : kTensorCores) {
    cr_expect_eq(Dot(core, {}, {}, 0.0f), 0.0f);
    cr_expect_eq(Dot(core, {0.0f}, {0x1p100f}, 0x1p-20f), 0x1p-20f);
    cr_expect_eq(Dot(core, {0x1p-24f}, {1.0f}, 0.0f, kF16), 0x1p-24f);
    cr_expect_eq(Dot(core, {0x1p-130f}, {1.0f}, 0x1p-140f),
                 0x1p-130f + 0x1p-140f);
    cr_expect_eq(Dot(core, {INFINITY}, {2.0f}, 1.0f), INFINITY);
    cr_expect_eq(Dot(core, {-0x1p127f}, {0x1p100f}, 1.0f), -INFINITY);
    cr_expect(std::isnan(Dot(core, {INFINITY}, {0.0f}, 1.0f)));
    cr_expect(std::isnan(Dot(core, {INFINITY}, {-1.0f}, INFINITY)));
    cr_expect(std::isnan(Dot(core, {1.0f}, {1.0f}, NAN)));
  }
}

// ---- DotError() ----

// A chain of products, 16 elements each, as in a kernel.
struct Chain {
  double error;  // of the largest product or partial sum, in 2^-24
};

Chain Multiply(const TensorCore& core, const std::vector<float>& a,
               const std::vector<float>& b, float first) {
  double exact = first;
  double largest = std::abs(exact);
  float sum = first;
  for (size_t k = 0; k < a.size(); k += 16) {
    const auto part = [k](const std::vector<float>& v) {
      return std::vector<float>(v.begin() + k, v.begin() + k + 16);
    };
    sum = Dot(core, part(a), part(b), sum);
    for (size_t i = k; i < k + 16; ++i) {
      const double product = static_cast<double>(a[i]) * b[i];
      exact += product;
      largest = std::max({largest, std::abs(product), std::abs(exact)});
    }
  }
  return {std::abs(sum - exact) / largest * 0x1p24};
}

// Keeps eight bits of significand, as bf16 has.
float Short(float v) {
  int exponent;
  const float fraction = std::frexp(v, &exponent);
  return std::ldexp(std::round(std::ldexp(fraction, 8)), exponent - 8);
}

// Rows are Gaussian, with four channels far from zero.
Test(rig_tensor_core, is_within_its_error_bound) {
  std::mt19937_64 engine(1);
  std::normal_distribution<float> gaussian;
  for (const TensorCore& core : kTensorCores) {
    double worst = 0.0;
    for (int n = 0; n < 500; ++n) {
      std::vector<float> a(128);
      std::vector<float> b(128);
      for (size_t k = 0; k < a.size(); ++k) {
        const float side = k % 32 != 5 ? 0.0f : k == 101 ? -1.0f : 1.0f;
        a[k] = Short(gaussian(engine) + side * 20.0f);
        b[k] = Short(gaussian(engine) + std::abs(side) * 24.0f);
      }
      worst = std::max(worst, Multiply(core, a, b, 0.0f).error);
    }
    cr_expect_leq(worst, core.DotError(128));
    cr_expect_gt(worst, 0.0);
  }
}

// Products that just do not count beside 1 show that the bound is no guess.
Test(rig_tensor_core, comes_near_its_error_bound) {
  for (const TensorCore& core : {kAmpere, kHopper}) {
    const float lost = std::ldexp(255.0f / 256, -23 - core.n_extra_bits);
    const double error =
        Multiply(core, Ones(128), std::vector<float>(128, lost), 1.0f).error;
    cr_expect_leq(error, core.DotError(128));
    cr_expect_gt(error, 0.75 * core.DotError(128));
  }
}

}  // namespace
}  // namespace kvevict::rig
