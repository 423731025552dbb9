// Keys whose cosines are hard to tell apart, for the tests of kernels that filter
// pairs of keys by products of f16: near_cosines.cuh.
#ifndef KVEVICT_TESTS_CUDA_KERNELS_NEAR_KEYS_H_
#define KVEVICT_TESTS_CUDA_KERNELS_NEAR_KEYS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "tests/cuda/kernels/cache_layer.h"

namespace kvevict {

// With so many equal elements 1 / sqrt(n) is almost halfway between two numbers of
// f16: below (rounding cuts 0.96 and 0.84 of the most), above (0.95, 0.95).
inline constexpr uint32_t kHalfwayDims[] = {247, 227, 59, 236};

// Planes as others, and if keys are near, some of these sizes.
inline PlaneShape PlaneForNear(uint32_t turn, uint32_t n_most, bool is_near,
                               Random& random) {
  if (!is_near || turn % 4 == 1) return PlaneOfTurn(turn, n_most, random);
  return RandomPlane(DTypeOfTurn(turn),
                     kHalfwayDims[turn / 4 % std::size(kHalfwayDims)], 1,
                     n_most, random);
}

// Rows of every dtype, some of which are
//   all 1 and -1, with few of one sign, so that all errors add up
//   like an earlier row but for the sign of one element, or just like it, and
//     sometimes nearly all of them
//   0, or of extreme size
inline ChangeRow MakeNear(const PlaneShape& c, Random& random) {
  const uint32_t one_sign = random.Below(4);
  const bool repeats = random.Below(3) == 0;
  return [&c, &random, one_sign, repeats](uint32_t token, float* row) {
    const uint32_t n = c.head_dim;
    if (repeats && token > 0 && random.Below(20) > 0) {
      std::copy_n(row - (1 + random.Below(token)) * size_t{n}, n, row);
      return;
    }
    switch (random.Below(one_sign == 0 ? 6 : 12)) {
      case 0:
      case 1:
      case 2:
        std::fill_n(row, n, 1.0f);
        for (uint32_t k = random.Below(4); k > 0; --k) {
          row[random.Below(n)] = -1.0f;
        }
        break;
      case 3:
      case 4: {
        if (token == 0) return;
        std::copy_n(row - (1 + random.Below(token)) * size_t{n}, n, row);
        if (random.Below(3) > 0) {
          float& element = row[random.Below(n)];
          element = -element;
        }
        break;
      }
      case 5: {
        if (random.Below(3) == 0) {
          std::fill_n(row, n, 0.0f);
          break;
        }
        if (IsQuantized(c.dtype)) return;
        // Squares below f32, subnormal ones, and too large ones; in f16 the least
        // and largest elements.
        constexpr int kPowers[] = {-100, -70, 55, 62};
        const int power = c.dtype == cuda::kF16
                              ? (random.Below(2) == 0 ? -10 : 13)
                              : kPowers[random.Below(std::size(kPowers))];
        for (uint32_t i = 0; i < n; ++i) row[i] = std::ldexp(row[i], power);
        break;
      }
      default:
        break;
    }
  };
}

// The cosine that kernels compute of two keys. scale_of is their rule for the
// factor of a norm; infinite norms have 0.
template <class ScaleOf>
float CosineOfRows(const float* a, const float* b, uint32_t n,
                   const ScaleOf& scale_of) {
  const auto scale = [&](const float* row) {
    float square = 0.0f;
    for (uint32_t i = 0; i < n; ++i) square = std::fma(row[i], row[i], square);
    const float norm = std::sqrt(square);
    return std::isfinite(norm) ? scale_of(norm) : 0.0f;
  };
  const float scale_a = scale(a);
  const float scale_b = scale(b);
  float cosine = 0.0f;
  if (scale_a == 0.0f || scale_b == 0.0f) return cosine;
  for (uint32_t i = 0; i < n; ++i) {
    const float u = a[i] * scale_a;
    const float v = b[i] * scale_b;
    cosine = std::fma(u, v, cosine);
  }
  return cosine;
}

}  // namespace kvevict

#endif  // KVEVICT_TESTS_CUDA_KERNELS_NEAR_KEYS_H_
