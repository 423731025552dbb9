// Euclidean norms of rows.
#ifndef KVEVICT_CORE_KERNELS_ROW_NORM_H_
#define KVEVICT_CORE_KERNELS_ROW_NORM_H_

#include <cstdint>

#include "core/kernels/row_source.h"
#include "core/simd.h"

namespace kvevict {

struct RowNorms {
  RowSource rows;
  uint32_t first_row = 0;  // of n_rows
  uint32_t n_rows = 0;
  uint32_t head_dim = 0;
  bool negated = false;
  float* out = nullptr;  // [n_rows] per head
  SideBySide heads = {};
};

// Accumulated in f32 in an order that depends only on head_dim. For f16 and
// bf16 rows every target gives the same bits, since their squares are exact in
// f32. A norm beyond f32's range is infinite. Reads every row once.
void ComputeRowNorms(SimdTarget simd, const RowNorms& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_ROW_NORM_H_
