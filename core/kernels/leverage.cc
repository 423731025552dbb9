#include "core/kernels/leverage.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/leverage.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "core/kernels/normal_equations-inl.h"
#include "core/kernels/turn-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// The scratch. Matrices have n rows of n elements, n = head_dim padded.
struct Matrices {
  size_t n;
  double* gram;    // then the inverse of the factor, below its diagonal
  double* factor;  // above its diagonal
  double* tile;    // kTileRows rows of n, or the same transposed
  double* sums;    // [n], then means
  float* row;      // [n + kRowPad]
};

Matrices FindMatrices(const Leverage& args) {
  Matrices m;
  m.n = PaddedMatrix(args.head_dim);
  m.gram = static_cast<double*>(args.scratch);
  m.factor = m.gram + m.n * m.n;
  m.tile = m.factor + m.n * m.n;
  m.sums = m.tile + kTileRows * m.n;
  m.row = reinterpret_cast<float*>(m.sums + m.n);
  return m;
}

// Turns pairs of one row by the rotation. Elements beyond the pairs stay.
HWY_INLINE void TurnBack(const Leverage& args, const Rotation& rotation,
                         float* HWY_RESTRICT row) {
  const RowTag d;
  const uint32_t n = args.n_pairs;
  hn::VFromD<RowTag> re, im;
  for (uint32_t f = 0; f < n; f += hn::Lanes(d)) {
    const size_t lanes = std::min<size_t>(hn::Lanes(d), n - f);
    if (args.is_interleaved) {
      HWY_ALIGN float pairs[2 * kRowPad] = {};
      std::copy_n(row + 2 * f, 2 * lanes, pairs);
      hn::LoadInterleaved2(d, pairs, re, im);
      Turn(d, rotation, f, re, im);
      hn::StoreInterleaved2(re, im, d, pairs);
      std::copy_n(pairs, 2 * lanes, row + 2 * f);
    } else {
      re = hn::LoadN(d, row + f, lanes);
      im = hn::LoadN(d, row + n + f, lanes);
      Turn(d, rotation, f, re, im);
      hn::StoreN(re, d, row + f, lanes);
      hn::StoreN(im, d, row + n + f, lanes);
    }
  }
}

// Calls visit(i, row) for rows [first, first + n) before RoPE.
template <class Visit>
HWY_INLINE void ForEachRow(const Leverage& args, const Matrices& m,
                           uint32_t first, uint32_t n, const Visit& visit) {
  Rotation rotation;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t r = first + i;
    LoadRow(args.keys, args.first_row + r, 0, args.head_dim, m.row);
    FindRotation(args.turns, args.n_pairs, -args.positions[r], rotation);
    TurnBack(args, rotation, m.row);
    visit(i, m.row);
  }
}

// The Gram matrix of the rows minus their mean, and the mean.
void FindGram(const Leverage& args, const Matrices& m) {
  const Doubles d;
  std::fill_n(m.gram, m.n * m.n, 0.0);
  std::fill_n(m.sums, m.n, 0.0);
  std::fill_n(m.tile, kTileRows * m.n, 0.0);
  for (uint32_t first = 0; first < args.n_rows; first += kTileRows) {
    const uint32_t n = std::min<uint32_t>(kTileRows, args.n_rows - first);
    ForEachRow(args, m, first, n, [&](uint32_t i, const float* row) {
      std::copy_n(row, args.head_dim, m.tile + i * m.n);
    });
    for (uint32_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < m.n; j += hn::Lanes(d)) {
        hn::Store(
            hn::Add(hn::Load(d, m.sums + j), hn::Load(d, m.tile + i * m.n + j)),
            d, m.sums + j);
      }
    }
    AddGram(m.tile, m.n, n, {m.gram, m.n, m.n});
  }
  std::copy_n(m.sums, m.n, m.tile);
  Divide(m.sums, 0, m.n, static_cast<double>(args.n_rows));
  for (size_t i = 0; i < args.head_dim; ++i) {
    Subtract(m.tile[i], m.sums, i, m.n, m.gram + i * m.n);
  }
}

// Factors the Gram matrix with a ridge into R'R. False if it is not positive
// definite.
bool Factor(const Leverage& args, const Matrices& m, double ridge) {
  std::copy_n(m.gram, m.n * m.n, m.factor);
  for (size_t k = 0; k < args.head_dim; ++k) {
    m.factor[k * m.n + k] += ridge;
  }
  return FactorMatrix(args.head_dim, {m.factor, m.n, m.n});
}

// gram = the inverse of R', a lower triangle.
void InvertFactor(const Leverage& args, const Matrices& m) {
  std::fill_n(m.gram, m.n * m.n, 0.0);
  for (size_t i = 0; i < args.head_dim; ++i) {
    double* const row = m.gram + i * m.n;
    row[i] = 1.0;
    for (size_t k = 0; k < i; ++k) {
      Subtract(m.factor[k * m.n + i], m.gram + k * m.n, 0, k + 1, row);
    }
    Divide(row, 0, i + 1, m.factor[i * m.n + i]);
  }
}

// out = the squared lengths of the tile's columns times the inverse.
void ScoreTile(const Leverage& args, const Matrices& m, double* out) {
  const Doubles d;
  const hn::Rebind<float, Doubles> df;
  const size_t lanes = hn::Lanes(d);
  const auto rounded = [&](auto v) HWY_ATTR {
    return hn::PromoteTo(d, hn::DemoteTo(df, v));
  };
  std::fill_n(out, kTileRows, 0.0);
  for (size_t i = 0; i < args.head_dim; i += kMatrixRows) {
    const double* const rows = m.gram + i * m.n;
    for (size_t t = 0; t < kTileRows; t += 2 * lanes) {
      auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
      auto b0 = a0, b1 = a0, b2 = a0, b3 = a0;
      for (size_t k = 0; k < i + kMatrixRows; ++k) {
        const double* const column = m.tile + k * kTileRows + t;
        const auto x = hn::Load(d, column), y = hn::Load(d, column + lanes);
        auto v = hn::Set(d, rows[k]);
        a0 = hn::MulAdd(v, x, a0);
        b0 = hn::MulAdd(v, y, b0);
        v = hn::Set(d, rows[m.n + k]);
        a1 = hn::MulAdd(v, x, a1);
        b1 = hn::MulAdd(v, y, b1);
        v = hn::Set(d, rows[2 * m.n + k]);
        a2 = hn::MulAdd(v, x, a2);
        b2 = hn::MulAdd(v, y, b2);
        v = hn::Set(d, rows[3 * m.n + k]);
        a3 = hn::MulAdd(v, x, a3);
        b3 = hn::MulAdd(v, y, b3);
      }
      const auto add = [&](auto v, double* to) HWY_ATTR {
        const auto y = rounded(v);
        hn::Store(hn::MulAdd(y, y, hn::Load(d, to)), d, to);
      };
      add(a0, out + t);
      add(a1, out + t);
      add(a2, out + t);
      add(a3, out + t);
      add(b0, out + t + lanes);
      add(b1, out + t + lanes);
      add(b2, out + t + lanes);
      add(b3, out + t + lanes);
    }
  }
}

void ComputeLeverageOf(const Leverage& args) {
  if (args.n_rows == 0) return;
  const Matrices m = FindMatrices(args);
  FindGram(args, m);
  const bool found =
      std::any_of(std::begin(kLeverageRidges), std::end(kLeverageRidges),
                  [&](double ridge) { return Factor(args, m, ridge); });
  if (!found) {
    std::fill_n(args.out, args.n_rows, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  InvertFactor(args, m);
  HWY_ALIGN double scores[kTileRows];
  for (uint32_t first = 0; first < args.n_rows; first += kTileRows) {
    const uint32_t n = std::min<uint32_t>(kTileRows, args.n_rows - first);
    std::fill_n(m.tile, kTileRows * m.n, 0.0);
    ForEachRow(args, m, first, n, [&](uint32_t i, const float* row) {
      for (uint32_t k = 0; k < args.head_dim; ++k) {
        m.tile[k * kTileRows + i] = static_cast<float>(row[k] - m.sums[k]);
      }
    });
    ScoreTile(args, m, scores);
    // Rounding can make leverages of nearly dependent keys exceed 1. NaN stays.
    std::transform(scores, scores + n, args.out + first, [](double score) {
      return static_cast<float>(score > 1.0 ? 1.0 : score);
    });
  }
}

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(ComputeLeverageOf);

CheckedSize LeverageScratchBytes(uint32_t head_dim) {
  const CheckedSize n = CheckedSize(head_dim).AlignUp(kMatrixPad);
  return (CheckedSize(2) * n * n + CheckedSize(kTileRows + 2) * n) *
             CheckedSize(sizeof(double)) +
         CheckedSize(256);
}

void ComputeLeverage(SimdTarget simd, const Leverage& args) {
  KV_DISPATCH(simd, ComputeLeverageOf)(args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
