#include "core/cpu/plane_rows.h"

#include <numeric>

#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

// Heads that share a list and a block table and are adjacent move as one wide
// row.
bool HeadsAreOneRow(const kvevict_view& view, const kvevict_plane& plane,
                    uint32_t n_lists) {
  const uint32_t row_bytes = RowBytes(plane);
  return n_lists == 1 && PieceBytes(plane) == row_bytes &&
         view.block_table_head_stride == 0 &&
         plane.head_stride_bytes == int64_t{row_bytes} &&
         uint64_t{view.n_kv_heads} * row_bytes <= UINT32_MAX;
}

MovedRows AllHeads(const kvevict_view& view, const kvevict_plane& plane,
                   uint32_t head) {
  MovedRows rows;
  rows.rows = HeadRows(view, plane, head);
  rows.row_bytes = head == 0 ? view.n_kv_heads * RowBytes(plane) : 0;
  return rows;
}

// The rows of one head, in pieces of piece_bytes, a divisor of PieceBytes().
MovedRows OneHead(const kvevict_view& view, const kvevict_plane& plane,
                  uint32_t head, uint32_t piece_bytes) {
  MovedRows rows;
  rows.rows = HeadRows(view, plane, head);
  rows.row_bytes = piece_bytes;
  const RowPieces pieces = PiecesOf(plane, piece_bytes);
  rows.n_elements = pieces.n;
  rows.element_stride_bytes = pieces.stride;
  rows.group_elements = pieces.in_group;
  rows.group_stride_bytes = pieces.group_stride;
  return rows;
}

}  // namespace

MovedRows RowsOf(const kvevict_view& view, const kvevict_plane& plane,
                 uint32_t head, uint32_t n_lists) {
  return HeadsAreOneRow(view, plane, n_lists)
             ? AllHeads(view, plane, head)
             : OneHead(view, plane, head, PieceBytes(plane));
}

RowPair RowsOf(const kvevict_view& view, const kvevict_plane& plane,
               const kvevict_view& to_view, const kvevict_plane& to_plane,
               uint32_t head, uint32_t n_lists) {
  if (HeadsAreOneRow(view, plane, n_lists) &&
      HeadsAreOneRow(to_view, to_plane, n_lists)) {
    return {AllHeads(view, plane, head), AllHeads(to_view, to_plane, head)};
  }
  const uint32_t piece_bytes =
      std::gcd(PieceBytes(plane), PieceBytes(to_plane));
  return {OneHead(view, plane, head, piece_bytes),
          OneHead(to_view, to_plane, head, piece_bytes)};
}

}  // namespace kvevict::cpu
