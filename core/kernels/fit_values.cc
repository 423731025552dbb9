#include "core/kernels/fit_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/fit_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/fit_values.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "core/dtypes/store-inl.h"
#include "core/kernels/attention_softmax-inl.h"
#include "core/kernels/fit_biases-inl.h"
#include "core/kernels/fit_weights-inl.h"
#include "core/kernels/normal_equations-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

class Fitter {
 public:
  Fitter(SimdTarget simd, const FitValues& args)
      : simd_(simd),
        args_(args),
        p_(args.rows, args.n_keep, args.fits_biases,
           static_cast<uint8_t*>(args.scratch)),
        n_(args.rows.rows_per_head()),
        by_slots_(args.n_keep > n_),
        tile_(args, p_, by_slots_) {}

  void Run() {
    if (args_.rows.has_biases()) LoadKeptBiases();
    ForEachChunk([&](const Attention& chunk) { ReadAll(chunk); });
    if (args_.fits_biases && BiasFitter(args_, p_, tile_, by_slots_).Run()) {
      StoreKeptBiases();
    }
    ForEachChunk([&](const Attention& chunk) { SubtractKept(chunk); });
    FindMatrix();
    if (!FactorMatrix(p_.n_unknowns, matrix())) return;
    const Matrix solution = by_slots_ ? residuals() : sums();
    SolveFactored(p_.n_unknowns, matrix(), solution);
    if (!by_slots_) {
      for (uint32_t i = 0; i < args_.n_keep; ++i) Change(i, solution.Row(i));
      return;
    }
    const Matrix changes = {p_.changes, p_.n_columns, p_.n_columns};
    for (uint32_t first = 0; first < args_.n_keep; first += kTileRows) {
      const uint32_t n = TileRows(first, args_.n_keep);
      tile_.Fill(first, n);
      std::fill_n(p_.changes, kTileRows * p_.n_columns, 0.0);
      AddProducts<false, false>({p_.tile, 1, p_.stride}, solution, n_, {0, n},
                                changes);
      for (uint32_t i = 0; i < n; ++i) Change(first + i, changes.Row(i));
    }
  }

 private:
  Matrix matrix() const {
    return {p_.matrix, p_.stride, PaddedMatrix(p_.n_unknowns)};
  }
  Matrix residuals() const {
    return {p_.residuals, p_.n_columns, p_.n_columns};
  }
  Matrix sums() const { return {p_.sums, p_.n_columns, p_.n_columns}; }
  static uint32_t TileRows(uint32_t first, uint32_t n) {
    return std::min(static_cast<uint32_t>(kTileRows), n - first);
  }
  AttentionState StateAt(uint32_t i, const Attention& chunk) const {
    return AttentionState::At(p_.states + i * p_.state_floats, chunk.n_rows());
  }

  void LoadKeptBiases() const {
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      std::memcpy(p_.biases + i, BiasAt(i), sizeof(float));
    }
    std::fill_n(p_.biases + args_.n_keep, kPanel, 0.0f);
  }
  void StoreKeptBiases() const {
    for (uint32_t i = 0; i < args_.n_keep; ++i) {
      std::memcpy(BiasAt(i), p_.biases + i, sizeof(float));
    }
  }
  uint8_t* BiasAt(uint32_t i) const {
    return const_cast<uint8_t*>(
        args_.rows.biases.Row(static_cast<uint32_t>(args_.keep[i])));
  }

  // Calls run(rows) for the queries, some at a time.
  template <typename Run>
  void ForEachChunk(const Run& run) const {
    Attention chunk = args_.rows;
    const uint32_t step = QueriesOfChunk(chunk);
    for (uint32_t first = 0; first < args_.rows.n_queries; first += step) {
      chunk.first_query = first;
      chunk.n_queries = std::min(step, args_.rows.n_queries - first);
      run(chunk);
    }
  }

  // Makes the residuals what the queries of a chunk read from all rows.
  void ReadAll(const Attention& chunk) const {
    const AttentionState state = StateAt(0, chunk);
    AttendSpan(simd_, chunk, {0, chunk.n_tokens}, state, p_.attention);
    if (args_.fits_biases) {
      SetSoftmax(chunk, state);
      for (size_t r = 0; r < chunk.n_rows(); ++r) {
        const size_t row = RowOf(chunk, r);
        p_.masses[row] = double{state.sum[r]} * p_.inverses[row];
      }
    }
    Finish(chunk, state, p_.reads);
    ForEachRead(chunk, [](double, float read) { return read; });
  }

  // Subtracts what they read from the kept rows.
  void SubtractKept(const Attention& chunk) const {
    const AttentionState state = AttendKept(chunk);
    SetSoftmax(chunk, state);
    Finish(chunk, state, p_.reads);
    ForEachRead(chunk, [](double all, float read) { return all - read; });
  }

  // Replaces the residuals of a chunk by those that `next` makes of them and of
  // p_.reads.
  template <typename Next>
  void ForEachRead(const Attention& chunk, const Next& next) const {
    for (size_t r = 0; r < chunk.n_rows(); ++r) {
      double* const out = residuals().Row(RowOf(chunk, r));
      const float* const read = p_.reads + r * p_.n_columns;
      for (uint32_t i = 0; i < chunk.v_dim; ++i) out[i] = next(out[i], read[i]);
      std::fill(out + chunk.v_dim, out + p_.n_columns, 0.0);
    }
  }

  // The row of all queries that a chunk's row is.
  static size_t RowOf(const Attention& chunk, size_t r) {
    return size_t{chunk.first_query} * chunk.group + r;
  }

  // Makes weights those of the softmax that a state is of.
  void SetSoftmax(const Attention& chunk, const AttentionState& state) const {
    for (size_t r = 0; r < chunk.n_rows(); ++r) {
      p_.references[RowOf(chunk, r)] = state.reference[r];
      p_.inverses[RowOf(chunk, r)] = InverseOf(state, r, r % chunk.group);
    }
  }

  // The state of the kept rows, gathered some at a time.
  AttentionState AttendKept(Attention chunk) const {
    const RowSource keys = chunk.keys, values = chunk.values;
    const size_t key_row = PaddedRow(chunk.k_dim);
    const size_t value_row = PaddedRow(chunk.v_dim);
    chunk.keys = PackedRows(p_.keys, key_row);
    chunk.values = PackedRows(p_.values, value_row);
    const auto* const list = reinterpret_cast<const uint32_t*>(args_.keep);
    for (uint32_t begin = 0; begin < args_.n_keep; begin += kFitGathered) {
      const uint32_t n = std::min(kFitGathered, args_.n_keep - begin);
      LoadRows(keys, list + begin, n, 0, chunk.k_dim, key_row, p_.keys);
      LoadRows(values, list + begin, n, 0, chunk.v_dim, value_row, p_.values);
      chunk.n_tokens = n;
      if (chunk.has_biases()) chunk.biases = PackedRows(p_.biases + begin, 1);
      AttendSpan(simd_, chunk, {0, n}, StateAt(begin == 0 ? 1 : 2, chunk),
                 p_.attention);
      if (begin == 0) continue;
      JoinAttention(simd_, chunk.n_rows(), chunk.v_dim, StateAt(2, chunk),
                    StateAt(1, chunk));
    }
    return StateAt(1, chunk);
  }

  static RowSource PackedRows(float* rows, size_t n) {
    RowSource source;
    source.base = reinterpret_cast<const uint8_t*>(rows);
    source.row_stride = static_cast<int64_t>(n * sizeof(float));
    source.element_stride = sizeof(float);
    return source;
  }

  // 1 / the sum of a row's exponentials, with that of its sink.
  float InverseOf(const AttentionState& state, size_t r, size_t head) const {
    double total = state.sum[r];
    if (args_.sinks != nullptr) {
      total += std::exp2(double{args_.sinks[head]} * double{kLog2OfE} -
                         state.reference[r]);
    }
    return total == 0.0 ? 0.0f : static_cast<float>(1.0 / total);
  }

  // Writes what a chunk's rows read. Row i * group + g is query i of head g.
  void Finish(const Attention& chunk, const AttentionState& state,
              float* out) const {
    AttentionResult result;
    result.sinks = args_.sinks;
    result.out = PackedRows(out, p_.n_columns);
    result.out_head_stride = result.out.row_stride;
    result.out.row_stride *= chunk.group;
    // Queries are counted from the first of all.
    result.out.base -= int64_t{chunk.first_query} * result.out.row_stride;
    FinishAttention(simd_, chunk, state, result);
  }

  // The matrix with its ridge, and X' times the residuals.
  void FindMatrix() const {
    const Matrix to = matrix();
    std::fill_n(p_.matrix, to.n_columns * p_.stride, 0.0);
    std::fill_n(p_.sums, to.n_columns * p_.n_columns, 0.0);
    const uint32_t n_rows = by_slots_ ? args_.n_keep : n_;
    for (uint32_t first = 0; first < n_rows; first += kTileRows) {
      const uint32_t n = TileRows(first, n_rows);
      tile_.Fill(first, n);
      AddGram(p_.tile, p_.stride, n, to);
      if (by_slots_) continue;
      AddProducts<false, false>({p_.tile, p_.stride, 1},
                                {residuals().Row(first), p_.n_columns, 0}, n,
                                {0, to.n_columns}, sums());
    }
    double trace = 0.0;
    for (size_t i = 0; i < p_.n_unknowns; ++i) trace += to.Row(i)[i];
    // Both systems have the trace of X'X.
    const double ridge = args_.ridge * trace / args_.n_keep;
    for (size_t i = 0; i < p_.n_unknowns; ++i) to.Row(i)[i] += ridge;
  }

  static float Largest(DType dtype) {
    return dtype == DType::kF16    ? 65504.0f
           : dtype == DType::kBF16 ? 0x1.FEp127f
                                   : std::numeric_limits<float>::max();
  }

  // Adds a change to the value of kept row i.
  void Change(uint32_t i, const double* change) const {
    const RowSource& values = args_.rows.values;
    const auto slot = static_cast<uint32_t>(args_.keep[i]);
    const uint32_t dim = args_.rows.v_dim;
    const float largest = Largest(values.dtype);
    float* const row = p_.staged;
    LoadRow(values, slot, 0, dim, row);
    for (uint32_t e = 0; e < dim; ++e) {
      const double fitted = row[e] + change[e];
      // Written so that NaN fails.
      if (std::abs(fitted) <= largest) row[e] = static_cast<float>(fitted);
    }
    StoreRow(row, values, slot, 0, dim);
  }

  const SimdTarget simd_;
  const FitValues& args_;
  const FitParts p_;
  const uint32_t n_;  // queries
  const bool by_slots_;
  const WeightTile tile_;
};

void FitOf(SimdTarget simd, const FitValues& args) { Fitter(simd, args).Run(); }

}  // namespace
}  // namespace kvevict::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvevict {

HWY_EXPORT(FitOf);

CheckedSize FitScratchBytes(const Attention& rows, uint32_t n_tokens,
                            bool fits_biases) {
  return FitParts(rows, n_tokens, fits_biases, nullptr).n_bytes();
}

void FitKeptValues(SimdTarget simd, const FitValues& args) {
  if (args.n_keep == 0 || args.n_keep == args.rows.n_tokens ||
      args.rows.n_queries == 0) {
    return;
  }
  KV_DISPATCH(simd, FitOf)(simd, args);
}

}  // namespace kvevict
#endif  // HWY_ONCE
