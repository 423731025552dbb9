// The scratch of a fit, the same for every CPU target.
#ifndef KVEVICT_CORE_KERNELS_FIT_PARTS_H_
#define KVEVICT_CORE_KERNELS_FIT_PARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/checked_math.h"
#include "core/kernels/attention.h"
#include "core/kernels/attention_parts.h"
#include "core/kernels/normal_equations.h"

namespace kvevict {

// Queries, with their heads, that attend together.
inline constexpr uint32_t kFitChunkRows = 256;
// Kept rows that are gathered together.
inline constexpr uint32_t kFitGathered = 512;

inline uint32_t QueriesOfChunk(const Attention& rows) {
  return std::min(rows.n_queries, std::max(1u, kFitChunkRows / rows.group));
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
  float* reads;   // of a chunk: [rows, padded v_dim]
  float* states;  // of all rows, then two of kept rows
  size_t state_floats;
  float* attention;
  float* keys;  // gathered
  float* values;
  float* staged;
  float* panel;
  float* block;
  float* biases;  // of kept rows
  // Only if biases are fitted:
  double* gram;    // as `matrix`
  double* masses;  // of each query: the weight of all rows, less the kept ones'
  double* pulls;   // a number for each unknown
  double* point;   // likewise: see BiasFitter
  double* next_point;
  double* wanted;  // of each kept row
  double* next_wanted;
  double* held;

  // `memory` is nullptr if only the size is wanted.
  FitParts(const Attention& rows, uint32_t n_keep, bool fits_biases,
           uint8_t* memory)
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
    reads = Take<float>(n_chunk, n_columns);
    state_floats = AttentionState::Floats(n_chunk, rows.v_dim);
    states = Take<float>(3, state_floats);
    attention = Take<float>(1, attention_floats);
    keys = Take<float>(kFitGathered, PaddedMatrix(rows.k_dim));
    values = Take<float>(kFitGathered, n_columns);
    const size_t dim = PaddedMatrix(std::max(rows.k_dim, rows.v_dim));
    staged = Take<float>(kPanel, dim + kMatrixPad);
    panel = Take<float>(kPanel, dim);
    block = Take<float>(kTileRows + kPanel, dim);
    biases = Take<float>(1, n_keep + kPanel);
    if (!fits_biases) return;
    gram = Take<double>(PaddedMatrix(n_unknowns), stride);
    masses = Take<double>(1, n);
    pulls = Take<double>(1, PaddedMatrix(n_unknowns));
    point = Take<double>(1, n_unknowns);
    next_point = Take<double>(1, n_unknowns);
    wanted = Take<double>(1, n_keep);
    next_wanted = Take<double>(1, n_keep);
    held = Take<double>(1, n_keep);
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

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_FIT_PARTS_H_
