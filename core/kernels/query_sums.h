// Adds up query rows of a head as they were before RoPE.
#ifndef KVEVICT_CORE_KERNELS_QUERY_SUMS_H_
#define KVEVICT_CORE_KERNELS_QUERY_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "core/complex.h"
#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct QuerySums {
  RowSource rows;  // of a floating-point dtype
  uint32_t n_rows = 0;
  uint32_t head_dim = 0;
  // [n_rows, n_pairs]: turns the pairs of a row back to before RoPE. Elements
  // beyond 2 * n_pairs have no pair.
  const Complex* turns = nullptr;
  uint32_t n_pairs = 0;
  bool is_interleaved = false;
  double* elements = nullptr;  // [head_dim]
  double* lengths = nullptr;   // [n_pairs]
  // [head_dim * (head_dim + 1) / 2]: the matrix on and behind its diagonal, row
  // by row; or NULL.
  double* products = nullptr;
  // [QuerySumsScratch(head_dim)]
  double* scratch = nullptr;
};

// Rows whose products are added together.
inline constexpr uint32_t kQueriesTogether = 4;

size_t QuerySumsScratch(uint32_t head_dim);

// Adds the rows in order, each by itself: how they are cut into calls makes no
// difference.
void AddQueryRows(SimdTarget simd, const QuerySums& args);

// True if no element of the rows is NaN or infinity. Only rows, their number,
// head_dim and scratch count.
bool AreFinite(SimdTarget simd, const QuerySums& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_QUERY_SUMS_H_
