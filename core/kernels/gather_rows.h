// Compaction of one head's rows (or of all heads' rows that lie side by side).
#ifndef KVEVICT_CORE_KERNELS_GATHER_ROWS_H_
#define KVEVICT_CORE_KERNELS_GATHER_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "core/kernels/row_source.h"

namespace kvevict {

struct GatherRowsArgs {
  RowSource rows;  // element_stride and dtype are not used
  uint32_t row_bytes =
      0;  // of a packed row, or of one element of a strided one
  // Rows whose elements are apart: n_elements pieces of row_bytes each,
  // element_stride_bytes from one to the next. 1 for packed rows.
  uint32_t n_elements = 1;
  int64_t element_stride_bytes = 0;
  const int32_t* keep = nullptr;  // strictly ascending
  uint32_t n_keep = 0;
};

// Moves row keep[i] to row i, for i = 0, 1, ... Since keep is strictly
// ascending, keep[i] >= i: a row is read before anything is written over it.
void GatherRowsInPlace(const GatherRowsArgs& args);

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_GATHER_ROWS_H_
