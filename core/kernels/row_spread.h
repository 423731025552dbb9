// How far the elements of rows lie apart.
#ifndef KVEVICT_CORE_KERNELS_ROW_SPREAD_H_
#define KVEVICT_CORE_KERNELS_ROW_SPREAD_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct RowSpreads {
  RowSource rows;
  uint32_t first_row = 0;  // of n_rows
  uint32_t n_rows = 0;
  uint32_t head_dim = 0;
  bool is_variance = false;  // else the range
  float* out = nullptr;      // [n_rows] per head
  SideBySide heads = {};
};

// The range is the largest element minus the smallest, without NaN; a row of
// NaN has -infinity. The variance is the mean of squares minus the square of
// the mean, at least 0; its sums are as in ComputeRowNorms(). Reads every row
// once.
void ComputeRowSpreads(SimdTarget simd, const RowSpreads& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ROW_SPREAD_H_
