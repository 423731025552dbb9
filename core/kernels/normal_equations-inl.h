// Sums of products in double, and the solution of normal equations. Every sum
// has one order, so that all targets with a fused multiply-add agree.
#if defined(KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_INL_H_
#undef KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_INL_H_
#else
#define KVEVICT_CORE_KERNELS_NORMAL_EQUATIONS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/kernels/normal_equations.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Doubles = hn::CappedTag<double, kMatrixPad / 2>;

// The left factors of products: term t of row i is at[t * term + i * row].
struct LeftRows {
  const double* at;
  size_t term;
  size_t row;
};

// Rows [begin, end) of a matrix. The number of rows is padded to kMatrixRows.
struct MatrixRows {
  size_t begin;
  size_t end;
};

// A matrix, with rows that are `stride` apart and padded to `n_columns`.
struct Matrix {
  double* at;
  size_t stride;
  size_t n_columns;

  double* Row(size_t i) const { return at + i * stride; }
};

// Adds to each row i of `to` in the range the sum over n_terms t of
// left(t, i) * right[t], or subtracts it, in the order of t. With kUpper only
// from the diagonal on, rounded down.
template <bool kSubtracts, bool kUpper>
void AddProducts(const LeftRows& left, const Matrix& right, size_t n_terms,
                 MatrixRows range, const Matrix& to) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  const size_t s = to.stride;
  const auto add = [](auto a, auto b, auto sum) HWY_ATTR {
    if constexpr (kSubtracts) {
      return hn::NegMulAdd(a, b, sum);
    } else {
      return hn::MulAdd(a, b, sum);
    }
  };
  for (size_t i = range.begin; i < range.end; i += kMatrixRows) {
    const double* const factors = left.at + i * left.row;
    const size_t first = kUpper ? i / kMatrixPad * kMatrixPad : 0;
    for (size_t j = first; j < to.n_columns; j += 2 * lanes) {
      double* const out = to.Row(i) + j;
      auto a0 = hn::Load(d, out), b0 = hn::Load(d, out + lanes);
      auto a1 = hn::Load(d, out + s), b1 = hn::Load(d, out + s + lanes);
      auto a2 = hn::Load(d, out + 2 * s), b2 = hn::Load(d, out + 2 * s + lanes);
      auto a3 = hn::Load(d, out + 3 * s), b3 = hn::Load(d, out + 3 * s + lanes);
      const double* row = right.at + j;
      const double* v = factors;
      for (size_t t = 0; t < n_terms; ++t) {
        const auto x = hn::Load(d, row), y = hn::Load(d, row + lanes);
        auto f = hn::Set(d, v[0]);
        a0 = add(f, x, a0);
        b0 = add(f, y, b0);
        f = hn::Set(d, v[left.row]);
        a1 = add(f, x, a1);
        b1 = add(f, y, b1);
        f = hn::Set(d, v[2 * left.row]);
        a2 = add(f, x, a2);
        b2 = add(f, y, b2);
        f = hn::Set(d, v[3 * left.row]);
        a3 = add(f, x, a3);
        b3 = add(f, y, b3);
        row += right.stride;
        v += left.term;
      }
      hn::Store(a0, d, out);
      hn::Store(b0, d, out + lanes);
      hn::Store(a1, d, out + s);
      hn::Store(b1, d, out + s + lanes);
      hn::Store(a2, d, out + 2 * s);
      hn::Store(b2, d, out + 2 * s + lanes);
      hn::Store(a3, d, out + 3 * s);
      hn::Store(b3, d, out + 3 * s + lanes);
    }
  }
}

// Adds the products of a tile's columns, on and above the diagonal, for n_rows
// of the tile.
HWY_INLINE void AddGram(const double* tile, size_t tile_stride, size_t n_rows,
                        const Matrix& gram) {
  AddProducts<false, true>({tile, tile_stride, 1},
                           {const_cast<double*>(tile), tile_stride, 0}, n_rows,
                           {0, gram.n_columns}, gram);
}

// to[j] -= factor * row[j] from j = first on, rounded down to a vector.
HWY_INLINE void Subtract(double factor, const double* row, size_t first,
                         size_t n, double* to) {
  const Doubles d;
  const auto f = hn::Set(d, factor);
  for (size_t j = first / hn::Lanes(d) * hn::Lanes(d); j < n;
       j += hn::Lanes(d)) {
    hn::Store(hn::NegMulAdd(f, hn::Load(d, row + j), hn::Load(d, to + j)), d,
              to + j);
  }
}

HWY_INLINE void Divide(double* row, size_t first, size_t n, double by) {
  const Doubles d;
  const auto divisor = hn::Set(d, by);
  for (size_t j = first / hn::Lanes(d) * hn::Lanes(d); j < n;
       j += hn::Lanes(d)) {
    hn::Store(hn::Div(hn::Load(d, row + j), divisor), d, row + j);
  }
}

// Factors a matrix of n rows, given on and above its diagonal, into R'R: R
// replaces it. Padding must be 0. False if it is not positive definite. Blocks
// of rows keep it in caches; the order of sums is that of the rows.
HWY_INLINE bool FactorMatrix(size_t n, const Matrix& m) {
  for (size_t begin = 0; begin < n; begin += kTileRows) {
    const size_t end = std::min(begin + kTileRows, n);
    for (size_t k = begin; k < end; ++k) {
      double* const row = m.Row(k);
      const double pivot = row[k];
      // Written so that NaN fails.
      if (!(pivot > 0.0 && pivot <= std::numeric_limits<double>::max())) {
        return false;
      }
      Divide(row, k, m.n_columns, std::sqrt(pivot));
      for (size_t i = k + 1; i < end; ++i) {
        Subtract(row[i], row, i, m.n_columns, m.Row(i));
      }
    }
    if (end == n) break;
    AddProducts<true, true>({m.Row(begin), m.stride, 1},
                            {m.Row(begin), m.stride, 0}, end - begin,
                            {end, m.n_columns}, m);
  }
  return true;
}

// Replaces the n rows of b by x with R'R x = b, where R is a factored matrix.
// Both have rows up to the next multiple of kMatrixPad.
HWY_INLINE void SolveFactored(size_t n, const Matrix& r, const Matrix& b) {
  for (size_t begin = 0; begin < n; begin += kTileRows) {
    const size_t end = std::min(begin + kTileRows, n);
    for (size_t k = begin; k < end; ++k) {
      Divide(b.Row(k), 0, b.n_columns, r.Row(k)[k]);
      for (size_t i = k + 1; i < end; ++i) {
        Subtract(r.Row(k)[i], b.Row(k), 0, b.n_columns, b.Row(i));
      }
    }
    if (end == n) break;
    AddProducts<true, false>({r.Row(begin), r.stride, 1},
                             {b.Row(begin), b.stride, 0}, end - begin,
                             {end, PaddedMatrix(n)}, b);
  }
  for (size_t begin = (n - 1) / kTileRows * kTileRows;; begin -= kTileRows) {
    const size_t end = std::min(begin + kTileRows, n);
    if (end < n) {
      AddProducts<true, false>({r.at + end, 1, r.stride},
                               {b.Row(end), b.stride, 0}, n - end, {begin, end},
                               b);
    }
    for (size_t k = end; k-- > begin;) {
      for (size_t i = k + 1; i < end; ++i) {
        Subtract(r.Row(k)[i], b.Row(i), 0, b.n_columns, b.Row(k));
      }
      Divide(b.Row(k), 0, b.n_columns, r.Row(k)[k]);
    }
    if (begin == 0) break;
  }
}

}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
