// Rows of one head (or of all heads, if their rows are adjacent) to be moved
// within their memory.
#ifndef KVEVICT_CORE_KERNELS_MOVED_ROWS_H_
#define KVEVICT_CORE_KERNELS_MOVED_ROWS_H_

#include <cstdint>

#include "core/kernels/row_source.h"

namespace kvevict {

struct MovedRows {
  RowSource rows;  // element_stride, groups and dtype are not used
  // Bytes of a packed row, or of one element of a strided row.
  uint32_t row_bytes = 0;
  // For rows whose elements are apart: n_elements pieces of row_bytes each,
  // element_stride_bytes from one to the next. 1 for packed rows.
  uint32_t n_elements = 1;
  int64_t element_stride_bytes = 0;
  // If pieces lie in groups: pieces per group, and bytes from one group to the
  // next. 0: they do not.
  uint32_t group_elements = 0;
  int64_t group_stride_bytes = 0;

  // Piece `i` of every row.
  RowSource Piece(uint32_t i) const {
    RowSource piece = rows;
    if (group_elements != 0) {
      piece.base += i / group_elements * group_stride_bytes;
      i %= group_elements;
    }
    piece.base += i * element_stride_bytes;
    return piece;
  }
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KERNELS_MOVED_ROWS_H_
