#include "core/kernels/fit_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/normal_equations.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/fit_values.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// Must follow foreach_target.h, which includes this file once per target.
#include "core/dtypes/load-inl.h"
#include "core/dtypes/store-inl.h"
#include "core/kernels/attention_softmax-inl.h"
#include "core/kernels/normal_equations-inl.h"
#include "core/kernels/row_panel-inl.h"
#include "hwy/highway.h"

// The layout of the scratch, the same for every target.
#ifndef KVEVICT_CORE_KERNELS_FIT_VALUES_PARTS_
#define KVEVICT_CORE_KERNELS_FIT_VALUES_PARTS_
namespace kvevict {
namespace {

// Queries, with their heads, that attend together.
constexpr uint32_t kRowsOfChunk = 256;
// Kept rows that are gathered together.
constexpr uint32_t kGathered = 512;

uint32_t QueriesOfChunk(const Attention& rows) {
  return std::min(rows.n_queries, std::max(1u, kRowsOfChunk / rows.group));
}

// The system has as many unknowns as the smaller of queries and kept rows.
struct FitParts {
  size_t n_unknowns;
  size_t stride;     // of the matrix and the tile
  size_t n_columns;  // of residuals and sums
  double* matrix;
  double* tile;       // kTileRows rows
  double* residuals;  // a row for each query; the solution if they are fewer
  double* sums;       // a row for each kept row; the solution if they are fewer
  double* changes;    // kTileRows rows
  float* references;  // of each query: weight = inverse * 2^(x - reference)
  float* inverses;
  float* reads;   // of a chunk: [2, rows, padded v_dim]
  float* states;  // of all rows, then two of kept rows
  size_t state_floats;
  float* attention;
  float* keys;  // gathered
  float* values;
  float* staged;
  float* panel;
  float* block;

  // `memory` is nullptr if only the size is wanted.
  FitParts(const Attention& rows, uint32_t n_keep, uint8_t* memory)
      : memory_(memory) {
    const size_t n = rows.rows_per_head();
    n_unknowns = std::min<size_t>(n, n_keep);
    // Rows that are a power of two apart would evict each other from caches.
    stride = PaddedMatrix(n_unknowns) + kMatrixPad;
    n_columns = PaddedMatrix(rows.v_dim);
    Attention chunk = rows;
    chunk.n_queries = QueriesOfChunk(rows);
    const uint32_t n_chunk = chunk.rows_per_head();
    size_t attention_floats = AttentionScratchFloats(chunk);
    if (const uint32_t rest = rows.n_queries % chunk.n_queries; rest > 0) {
      chunk.n_queries = rest;
      attention_floats =
          std::max(attention_floats, AttentionScratchFloats(chunk));
    }
    matrix = Take<double>(PaddedMatrix(n_unknowns), stride);
    tile = Take<double>(kTileRows, stride);
    residuals = Take<double>(PaddedMatrix(n), n_columns);
    sums = Take<double>(PaddedMatrix(n_unknowns), n_columns);
    changes = Take<double>(kTileRows, n_columns);
    references = Take<float>(1, n + kPanel);
    inverses = Take<float>(1, n + kPanel);
    reads = Take<float>(2 * size_t{n_chunk}, n_columns);
    state_floats = AttentionState::Floats(n_chunk, rows.v_dim);
    states = Take<float>(3, state_floats);
    attention = Take<float>(1, attention_floats);
    keys = Take<float>(kGathered, PaddedMatrix(rows.k_dim));
    values = Take<float>(kGathered, n_columns);
    const size_t dim = PaddedMatrix(std::max(rows.k_dim, rows.v_dim));
    staged = Take<float>(kPanel, dim + kMatrixPad);
    panel = Take<float>(kPanel, dim);
    block = Take<float>(kTileRows + kPanel, dim);
  }

  CheckedSize n_bytes() const { return n_bytes_; }

 private:
  template <typename T>
  T* Take(size_t n_rows, size_t n) {
    T* const part = memory_ == nullptr
                        ? nullptr
                        : reinterpret_cast<T*>(memory_ + n_bytes_.value());
    n_bytes_ = (n_bytes_ +
                CheckedSize(n_rows) * CheckedSize(n) * CheckedSize(sizeof(T)))
                   .AlignUp(64);
    return part;
  }

  uint8_t* const memory_;
  CheckedSize n_bytes_{0};
};

}  // namespace
}  // namespace kvevict
#endif

HWY_BEFORE_NAMESPACE();
namespace kvevict::HWY_NAMESPACE {
namespace {

// Weights of queries for a tile of the matrix X, or of X'.
class WeightTile {
 public:
  WeightTile(const FitValues& args, const FitParts& parts, bool by_slots)
      : args_(args), p_(parts), by_slots_(by_slots) {}

  // Fills rows [first, first + n) of X, or with by_slots of X'.
  void Fill(uint32_t first, uint32_t n) const {
    const size_t dim = args_.rows.k_dim;
    const uint32_t width = RowPanel::Width();
    const uint32_t n_groups = PackBlock(
        n, dim,
        [&](uint32_t i, float* row) HWY_ATTR { LoadRowOf(first + i, row); },
        p_.staged, p_.block);
    const RowPanel panel(dim, p_.staged, p_.panel);
    for (uint32_t c = 0; c < p_.n_unknowns; c += width) {
      const auto n_columns =
          static_cast<uint32_t>(std::min<size_t>(width, p_.n_unknowns - c));
      panel.Pack(n_columns, [&](uint32_t i, float* row)
                                HWY_ATTR { LoadColumnOf(c + i, row); });
      for (uint32_t g = 0; g < n_groups; ++g) {
        const uint32_t row = g * static_cast<uint32_t>(kRowsPerBlock);
        HWY_ALIGN float logits[kRowsPerBlock * 2 * kRowPad];
        MultiplyBlock(p_.block + row * dim, panel.data(), dim, logits, width);
        for (uint32_t r = row; r < std::min<size_t>(n, row + kRowsPerBlock);
             ++r) {
          float* const mine = logits + (r - row) * width;
          Weigh(first + r, c, mine);
          std::copy_n(mine, n_columns, p_.tile + r * p_.stride + c);
        }
      }
    }
    for (uint32_t r = 0; r < n; ++r) {
      std::fill(p_.tile + r * p_.stride + p_.n_unknowns,
                p_.tile + (r + 1) * p_.stride, 0.0);
    }
  }

 private:
  HWY_INLINE void LoadRowOf(uint32_t i, float* row) const {
    by_slots_ ? LoadKey(i, row) : LoadScaled(i, row);
  }
  HWY_INLINE void LoadColumnOf(uint32_t i, float* row) const {
    by_slots_ ? LoadScaled(i, row) : LoadKey(i, row);
  }
  HWY_INLINE void LoadKey(uint32_t i, float* row) const {
    LoadRow(args_.rows.keys, static_cast<uint32_t>(args_.keep[i]), 0,
            args_.rows.k_dim, row);
  }
  HWY_INLINE void LoadScaled(uint32_t i, float* row) const {
    LoadQuery(args_.rows, 0, i, row);
    ScaleRow(QueryScale(args_.rows.scale, args_.rows.softcap),
             PaddedRow(args_.rows.k_dim), row);
  }

  // Turns the logits of a row and a panel of columns into weights.
  HWY_INLINE void Weigh(uint32_t row, uint32_t column, float* logits) const {
    const RowTag d;
    const float softcap = args_.rows.softcap;
    const auto cap = hn::Set(d, softcap * kLog2OfE);
    for (size_t i = 0; i < RowPanel::Width(); i += hn::Lanes(d)) {
      auto x = hn::LoadU(d, logits + i);
      if (softcap != 0.0f) x = Cap(d, cap, x);
      const auto reference = by_slots_
                                 ? hn::LoadU(d, p_.references + column + i)
                                 : hn::Set(d, p_.references[row]);
      const auto inverse = by_slots_ ? hn::LoadU(d, p_.inverses + column + i)
                                     : hn::Set(d, p_.inverses[row]);
      const auto e = Exp2(d, hn::Sub(x, BaseOf(d, reference)));
      hn::StoreU(hn::Mul(e, inverse), d, logits + i);
    }
  }

  const FitValues& args_;
  const FitParts& p_;
  const bool by_slots_;
};

class Fitter {
 public:
  Fitter(SimdTarget simd, const FitValues& args)
      : simd_(simd),
        args_(args),
        p_(args.rows, args.n_keep, static_cast<uint8_t*>(args.scratch)),
        n_(args.rows.rows_per_head()),
        by_slots_(args.n_keep > n_),
        tile_(args, p_, by_slots_) {}

  void Run() {
    const Attention& rows = args_.rows;
    const uint32_t step = QueriesOfChunk(rows);
    for (uint32_t first = 0; first < rows.n_queries; first += step) {
      FindResiduals(first, std::min(step, rows.n_queries - first));
    }
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

  // What the queries of a chunk read from all rows, less what they read from
  // the kept ones.
  void FindResiduals(uint32_t first, uint32_t n_queries) const {
    Attention chunk = args_.rows;
    chunk.first_query = first;
    chunk.n_queries = n_queries;
    const size_t n_rows = chunk.n_rows();
    float* const all = p_.reads;
    float* const kept = p_.reads + n_rows * p_.n_columns;
    const AttentionState state = StateAt(0, chunk);
    AttendSpan(simd_, chunk, {0, chunk.n_tokens}, state, p_.attention);
    Finish(chunk, state, all);
    const AttentionState kept_state = AttendKept(chunk);
    for (size_t r = 0; r < n_rows; ++r) {
      const size_t row = size_t{first} * chunk.group + r;
      p_.references[row] = kept_state.reference[r];
      p_.inverses[row] = InverseOf(kept_state, r, r % chunk.group);
    }
    Finish(chunk, kept_state, kept);
    for (size_t r = 0; r < n_rows; ++r) {
      double* const out = residuals().Row(size_t{first} * chunk.group + r);
      const float* const a = all + r * p_.n_columns;
      const float* const b = kept + r * p_.n_columns;
      std::fill_n(out, p_.n_columns, 0.0);
      for (uint32_t i = 0; i < chunk.v_dim; ++i) out[i] = double{a[i]} - b[i];
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
    for (uint32_t begin = 0; begin < args_.n_keep; begin += kGathered) {
      const uint32_t n = std::min(kGathered, args_.n_keep - begin);
      LoadRows(keys, list + begin, n, 0, chunk.k_dim, key_row, p_.keys);
      LoadRows(values, list + begin, n, 0, chunk.v_dim, value_row, p_.values);
      chunk.n_tokens = n;
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

CheckedSize FitScratchBytes(const Attention& rows, uint32_t n_tokens) {
  return FitParts(rows, n_tokens, nullptr).n_bytes();
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
