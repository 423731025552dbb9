// The rows of a plane that one item moves.
#ifndef KVEVICT_CORE_CPU_PLANE_ROWS_H_
#define KVEVICT_CORE_CPU_PLANE_ROWS_H_

#include <cstdint>

#include "core/kernels/moved_rows.h"
#include "core/status.h"

namespace kvevict::cpu {

// Of a head's item where a layer has n_lists keep lists; none, of row_bytes 0,
// where another head's item has them.
MovedRows RowsOf(const kvevict_view& view, const kvevict_plane& plane,
                 uint32_t head, uint32_t n_lists);

// The same of a plane and the one that its rows are copied to: pieces that both
// have.
struct RowPair {
  MovedRows from, to;
};
RowPair RowsOf(const kvevict_view& view, const kvevict_plane& plane,
               const kvevict_view& to_view, const kvevict_plane& to_plane,
               uint32_t head, uint32_t n_lists);

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_PLANE_ROWS_H_
