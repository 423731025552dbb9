// Pools the rows of a window one by one, and reduces them.
#ifndef KVEVICT_CORE_KERNELS_POOL_ROWS_H_
#define KVEVICT_CORE_KERNELS_POOL_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/pool1d.h"
#include "core/policy/params.h"
#include "core/simd.h"

namespace kvevict {

// One query head's rows of weights [n_rows, n], row_stride elements apart.
struct RowPooling {
  const float* rows;
  size_t n_rows;
  size_t row_stride;
  size_t n;
  Pooling pool;
  PoolEdge edge;
  Reduce reduce;   // of rows
  float* scratch;  // [n]
  float* out;      // [n]
};

// Pools each row, scales it to the sum that it had before with edge kMass, and
// reduces the rows to one. A sum of 0 scales nothing.
void PoolAndReduceRows(SimdTarget simd, const RowPooling& args);

// out[i] = row[i] * factor, or with `adds` the sum of both or their larger.
// NaN in, NaN out.
void AddRow(SimdTarget simd, const float* row, size_t n, float factor,
            bool adds, bool is_max, float* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_POOL_ROWS_H_
