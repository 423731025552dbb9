#include "tests/rig/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvevict::rig {
namespace {

constexpr int kDepth = 16;  // products of one mma
constexpr int kLeastOfF32 = -126;
constexpr int kOfZero = -1000;  // less than any other, also when added to one

int ExponentOf(float v, int least) {
  if (v == 0.0f) return kOfZero;
  const auto biased = static_cast<int>(std::bit_cast<uint32_t>(v) >> 23 & 255);
  return std::max(biased - 127, least);
}

double PowerOfTwo(int n) {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// Rounds towards zero; infinity from 2^128 on.
float CutToF32(double v) {
  const auto nearest = static_cast<float>(v);
  if (!(std::abs(nearest) > std::abs(v)) || std::abs(v) >= 0x1p128) {
    return nearest;
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - 1);
}

struct Exponents {
  int of[kDepth];
};

Exponents ExponentsOf(const float (&elements)[kDepth], int least) {
  Exponents exponents;
  for (int k = 0; k < kDepth; ++k) {
    exponents.of[k] = ExponentOf(elements[k], least);
  }
  return exponents;
}

// c + the products first to last - 1, as numbers of double precision have it.
double Sum(const float* row, const float* column, int first, int last,
           float c) {
  double sum = c;
  for (int k = first; k < last; ++k) {
    sum += static_cast<double>(row[k]) * column[k];
  }
  return sum;
}

}  // namespace

void MultiplyAccumulate(const TensorCore& core, int least_exponent,
                        Matrices& m) {
  Exponents rows[16];
  Exponents columns[8];
  for (int i = 0; i < 16; ++i) rows[i] = ExponentsOf(m.a[i], least_exponent);
  for (int j = 0; j < 8; ++j) {
    columns[j] = ExponentsOf(m.b_columns[j], least_exponent);
  }

  const auto add = [&](int i, int j, int first, int last, float c) {
    const double sum = Sum(m.a[i], m.b_columns[j], first, last, c);
    if (!core.truncates || !std::isfinite(sum)) return static_cast<float>(sum);
    int highest = ExponentOf(c, kLeastOfF32);
    for (int k = first; k < last; ++k) {
      highest = std::max(highest, rows[i].of[k] + columns[j].of[k]);
    }
    if (highest < 2 * kLeastOfF32) return 0.0f;
    const int unit = highest - 23 - core.n_extra_bits;
    const double per_unit = PowerOfTwo(-unit);
    auto n_units = static_cast<int64_t>(c * per_unit);
    for (int k = first; k < last; ++k) {
      n_units += static_cast<int64_t>(static_cast<double>(m.a[i][k]) *
                                      m.b_columns[j][k] * per_unit);
    }
    return CutToF32(static_cast<double>(n_units) * PowerOfTwo(unit));
  };

  const int step = static_cast<int>(core.n_together);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < kDepth; k += step) {
        m.c[i][j] = add(i, j, k, k + step, m.c[i][j]);
      }
    }
  }
}

}  // namespace kvevict::rig
