#include "core/cpu/plane_rows.h"

#include "core/view.h"

namespace kvevict::cpu {
namespace {

bool IsPacked(const kvevict_plane& plane) {
  return plane.dtype == KVEVICT_DTYPE_OPAQUE ||
         ElementStride(plane) ==
             int64_t{ElementBytes(static_cast<DType>(plane.dtype))};
}

// Heads that share a list and a block table, and lie side by side, move as one wide
// row.
bool HeadsAreOneRow(const kvevict_view& view, const kvevict_plane& plane) {
  return IsPacked(plane) && view.block_table_head_stride == 0 &&
         plane.head_stride_bytes == int64_t{RowBytes(plane)} &&
         uint64_t{view.n_kv_heads} * RowBytes(plane) <= UINT32_MAX;
}

}  // namespace

MovedRows RowsOf(const kvevict_view& view, const kvevict_plane& plane,
                 uint32_t head, uint32_t n_lists) {
  MovedRows rows;
  rows.rows = HeadRows(view, plane, head);
  rows.row_bytes = RowBytes(plane);
  if (n_lists == 1 && HeadsAreOneRow(view, plane)) {
    rows.row_bytes *= head == 0 ? view.n_kv_heads : 0;
  } else if (!IsPacked(plane)) {
    rows.n_elements = plane.head_dim;
    rows.row_bytes /= plane.head_dim;
    rows.element_stride_bytes = ElementStride(plane);
  }
  return rows;
}

}  // namespace kvevict::cpu
