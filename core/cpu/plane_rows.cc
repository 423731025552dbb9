#include "core/cpu/plane_rows.h"

#include <algorithm>

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

enum class Pieces { kHeads, kRows, kElements };

Pieces LargestPieces(const kvevict_view& view, const kvevict_plane& plane,
                     uint32_t n_lists) {
  if (n_lists == 1 && HeadsAreOneRow(view, plane)) return Pieces::kHeads;
  return IsPacked(plane) ? Pieces::kRows : Pieces::kElements;
}

MovedRows RowsIn(Pieces pieces, const kvevict_view& view,
                 const kvevict_plane& plane, uint32_t head) {
  MovedRows rows;
  rows.rows = HeadRows(view, plane, head);
  rows.row_bytes = RowBytes(plane);
  if (pieces == Pieces::kHeads) {
    rows.row_bytes *= head == 0 ? view.n_kv_heads : 0;
  } else if (pieces == Pieces::kElements) {
    rows.n_elements = plane.head_dim;
    rows.row_bytes /= plane.head_dim;
    rows.element_stride_bytes = ElementStride(plane);
  }
  return rows;
}

}  // namespace

MovedRows RowsOf(const kvevict_view& view, const kvevict_plane& plane,
                 uint32_t head, uint32_t n_lists) {
  return RowsIn(LargestPieces(view, plane, n_lists), view, plane, head);
}

RowPair RowsOf(const kvevict_view& view, const kvevict_plane& plane,
               const kvevict_view& to_view, const kvevict_plane& to_plane,
               uint32_t head, uint32_t n_lists) {
  const Pieces pieces = std::max(LargestPieces(view, plane, n_lists),
                                 LargestPieces(to_view, to_plane, n_lists));
  return {RowsIn(pieces, view, plane, head),
          RowsIn(pieces, to_view, to_plane, head)};
}

}  // namespace kvevict::cpu
