// Fits biases of kept rows, so that queries give them the mass of all rows.
#if defined(KVEVICT_CORE_KERNELS_FIT_BIASES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef KVEVICT_CORE_KERNELS_FIT_BIASES_INL_H_
#undef KVEVICT_CORE_KERNELS_FIT_BIASES_INL_H_
#else
#define KVEVICT_CORE_KERNELS_FIT_BIASES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/kernels/fit_parts.h"
#include "core/kernels/fit_values.h"
#include "core/kernels/fit_weights-inl.h"
#include "core/kernels/normal_equations-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Least squares within bounds: each row's factor B is 1 + x, and x = P'y, cut at
// the bounds, for the y at the minimum of the dual,
//   ridge |y|^2 / 2 - (T - P 1) y + the integral of the cut x from 0 to P'y,
// which is convex and quadratic between bounds. Each round is a Newton step: it
// holds the x that are beyond a bound, solves for the others by a Cholesky factor,
// and goes as far towards the solution as the dual falls. Once a whole step leaves
// every x on its side, that is the minimum.
class BiasFitter {
 public:
  // Weights of `tile` are those of the softmax over all rows.
  BiasFitter(const FitValues& args, const FitParts& parts,
             const WeightTile& tile, bool by_slots)
      : args_(args), p_(parts), tile_(tile), by_slots_(by_slots) {}

  // Changes the biases of the parts. False, with all as they were, if weights
  // are not finite or no step is the last.
  bool Run() {
    std::fill_n(p_.held, args_.n_keep, 0.0);
    if (!by_slots_) FindGram();
    if (!SolveNext()) return false;
    double step = 1.0;
    Move(step);
    for (uint32_t round = 0; !HoldSlots() || step < 1.0; ++round) {
      if (round == kMostBiasSteps || !SolveNext()) return false;
      step = FindStep();
      Move(step);
    }
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      p_.biases[i] =
          static_cast<float>(p_.biases[i] + std::log1p(Cut(p_.wanted[i])));
    }
    return true;
  }

 private:
  static constexpr int kMostHalvings = 30;

  double Cut(double x) const { return std::clamp(x, least_, most_); }

  // Holds what is beyond a bound there. 0, which is within, stands for free.
  // Returns whether none changes.
  bool HoldSlots() const {
    bool settled = true;
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      const double x = p_.wanted[i];
      const double held = Cut(x) == x ? 0.0 : Cut(x);
      settled = settled && held == p_.held[i];
      p_.held[i] = held;
    }
    return settled;
  }

  // Finds where a whole step leads. False if that is no number.
  bool SolveNext() {
    if (!(by_slots_ ? SolveForQueries() : SolveForSlots())) return false;
    return std::all_of(p_.next_wanted, p_.next_wanted + args_.n_keep,
                       [](double x) { return std::isfinite(x); });
  }

  static double Between(double from, double to, double step) {
    return step == 1.0 ? to : from + step * (to - from);
  }
  void Move(double step) const {
    for (size_t i = 0; i < p_.n_unknowns; ++i) {
      p_.point[i] = Between(p_.point[i], p_.next_point[i], step);
    }
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      p_.wanted[i] = Between(p_.wanted[i], p_.next_wanted[i], step);
    }
  }

  // The largest of 1, 1/2, 1/4, ... with which the dual falls by a part of what
  // its slope says.
  double FindStep() const {
    const double begin = DualAt(0.0);
    const double slope = SlopeOfDual();
    double step = 1.0;
    for (int i = 0; i < kMostHalvings; ++i, step *= 0.5) {
      const double most = begin + 1e-4 * step * slope + 1e-13 * std::abs(begin);
      if (DualAt(step) <= most) break;
    }
    return step;
  }

  // With a point u for each slot, y is (T - P 1 - P u) / ridge, and ridge times
  // the dual, but for a constant, u'P'P u / 2 + ridge times the integral. P'P u
  // is `pulls` - ridge * wanted.
  double DualAt(double step) const {
    double sum = 0.0;
    for (size_t i = 0; i < p_.n_unknowns; ++i) {
      const double at = Between(p_.point[i], p_.next_point[i], step);
      if (by_slots_) {
        sum += (0.5 * ridge_ * at - p_.masses[i]) * at;
      } else {
        const double x = Between(p_.wanted[i], p_.next_wanted[i], step);
        sum += 0.5 * (p_.pulls[i] - ridge_ * x) * at;
      }
    }
    double integral = 0.0;
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      const double x = Between(p_.wanted[i], p_.next_wanted[i], step);
      integral += Cut(x) * (x - 0.5 * Cut(x));
    }
    return sum + (by_slots_ ? 1.0 : ridge_) * integral;
  }
  double SlopeOfDual() const {
    double sum = 0.0;
    for (size_t i = 0; i < p_.n_unknowns; ++i) {
      const double change = p_.next_point[i] - p_.point[i];
      sum += change * (by_slots_ ? ridge_ * p_.point[i] - p_.masses[i]
                                 : p_.pulls[i] - ridge_ * p_.wanted[i]);
    }
    double integral = 0.0;
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      integral += Cut(p_.wanted[i]) * (p_.next_wanted[i] - p_.wanted[i]);
    }
    return sum + (by_slots_ ? 1.0 : ridge_) * integral;
  }

  Matrix MatrixAt(double* at) const {
    return {at, p_.stride, PaddedMatrix(p_.n_unknowns)};
  }
  // The right side and the solution are the first column.
  Matrix side() const { return {p_.sums, p_.n_columns, kMatrixPad}; }
  void ClearSide() const {
    for (size_t i = 0; i < PaddedMatrix(p_.n_unknowns); ++i) {
      std::fill_n(side().Row(i), kMatrixPad, 0.0);
    }
  }
  bool Solve() const {
    const Matrix matrix = MatrixAt(p_.matrix);
    if (!FactorMatrix(p_.n_unknowns, matrix)) return false;
    SolveFactored(p_.n_unknowns, matrix, side());
    return true;
  }

  void SetRidge(const Matrix& gram) {
    double trace = 0.0;
    for (size_t i = 0; i < p_.n_unknowns; ++i) trace += gram.Row(i)[i];
    ridge_ = args_.ridge * trace / args_.n_keep;
  }

  // ---- At least as many queries as rows: (P'P + ridge) x = P'(T - P 1) ----

  void FindGram() {
    const Matrix gram = MatrixAt(p_.gram);
    const size_t n_slots = p_.n_unknowns;
    std::fill_n(p_.gram, gram.n_columns * p_.stride, 0.0);
    std::fill_n(p_.pulls, gram.n_columns, 0.0);
    const uint32_t n_queries = args_.rows.rows_per_head();
    ForEachTile(n_queries, [&](uint32_t first, uint32_t n) {
      AddGram(p_.tile, p_.stride, n, gram);
      for (uint32_t r = 0; r < n; ++r) {
        const double* const row = p_.tile + r * p_.stride;
        double lacks = p_.masses[first + r];
        for (size_t j = 0; j < n_slots; ++j) lacks -= row[j];
        Subtract(-lacks, row, 0, gram.n_columns, p_.pulls);
      }
    });
    for (size_t i = 0; i < n_slots; ++i) {
      for (size_t j = 0; j < i; ++j) gram.Row(i)[j] = gram.Row(j)[i];
    }
    SetRidge(gram);
  }

  bool SolveForSlots() const {
    const Matrix gram = MatrixAt(p_.gram);
    const Matrix matrix = MatrixAt(p_.matrix);
    const size_t n = p_.n_unknowns;
    const double* const held = p_.held;
    std::copy_n(p_.gram, gram.n_columns * p_.stride, p_.matrix);
    ClearSide();
    for (size_t i = 0; i < n; ++i) {
      double* const row = matrix.Row(i);
      side().Row(i)[0] =
          held[i] != 0.0 ? held[i] : p_.pulls[i] - Dot(gram.Row(i), held, n);
      for (size_t j = 0; j < n; ++j) {
        if (held[i] != 0.0 || held[j] != 0.0) row[j] = 0.0;
      }
      row[i] = held[i] != 0.0 ? 1.0 : row[i] + ridge_;
    }
    if (!Solve()) return false;
    for (size_t i = 0; i < n; ++i) p_.next_point[i] = side().Row(i)[0];
    for (size_t i = 0; i < n; ++i) {
      p_.next_wanted[i] =
          held[i] == 0.0
              ? p_.next_point[i]
              : (p_.pulls[i] - Dot(gram.Row(i), p_.next_point, n)) / ridge_;
    }
    return true;
  }

  // ---- Fewer: x = P'y, (P P' + ridge) y = T - P 1, P of the free rows ----

  bool SolveForQueries() {
    const Matrix matrix = MatrixAt(p_.matrix);
    const size_t n = p_.n_unknowns;
    std::fill_n(p_.matrix, matrix.n_columns * p_.stride, 0.0);
    std::copy_n(p_.masses, n, p_.pulls);
    std::fill(p_.pulls + n, p_.pulls + matrix.n_columns, 0.0);
    const bool is_first = ridge_ == 0.0;
    ForEachTile(args_.n_keep, [&](uint32_t first, uint32_t n_slots) {
      for (uint32_t r = 0; r < n_slots; ++r) {
        double* const row = p_.tile + r * p_.stride;
        const double held = p_.held[first + r];
        if (is_first) Subtract(1.0, row, 0, matrix.n_columns, p_.pulls);
        if (held == 0.0) continue;
        Subtract(held, row, 0, matrix.n_columns, p_.pulls);
        std::fill_n(row, matrix.n_columns, 0.0);
      }
      AddGram(p_.tile, p_.stride, n_slots, matrix);
    });
    if (is_first) {
      std::copy_n(p_.pulls, n, p_.masses);
      SetRidge(matrix);
    }
    ClearSide();
    for (size_t i = 0; i < n; ++i) {
      matrix.Row(i)[i] += ridge_;
      side().Row(i)[0] = p_.pulls[i];
    }
    if (!Solve()) return false;
    for (size_t i = 0; i < n; ++i) p_.next_point[i] = side().Row(i)[0];
    ForEachTile(args_.n_keep, [&](uint32_t first, uint32_t n_slots) {
      for (uint32_t r = 0; r < n_slots; ++r) {
        p_.next_wanted[first + r] =
            Dot(p_.tile + r * p_.stride, p_.next_point, n);
      }
    });
    return true;
  }

  // Calls visit(first, n) for every tile of n rows, filled.
  template <typename Visit>
  void ForEachTile(uint32_t n_rows, const Visit& visit) const {
    for (uint32_t first = 0; first < n_rows; first += kTileRows) {
      const uint32_t n =
          std::min(static_cast<uint32_t>(kTileRows), n_rows - first);
      tile_.Fill(first, n);
      visit(first, n);
    }
  }

  static double Dot(const double* a, const double* b, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }

  const FitValues& args_;
  const FitParts& p_;
  const WeightTile& tile_;
  const bool by_slots_;
  const double least_ = std::exp(-kMostBiasChange) - 1.0;
  const double most_ = std::exp(kMostBiasChange) - 1.0;
  double ridge_ = 0.0;
};

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
