#include "cuda/plane_batch.h"
#include "cuda/kernels/gather_rows.h"

#include <numeric>

#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

// The distance between two addresses in elements of 4 bytes. Returns false if
// it does not fit in 32 bits.
bool FindDistance(uint64_t from, uint64_t to, int32_t* out) {
  const auto bytes = static_cast<int64_t>(to - from);
  *out = static_cast<int32_t>(bytes / 4);
  return int64_t{*out} * 4 == bytes;
}

// Treats pieces as elements.
void SetPieces(const RowPieces& pieces, RowLayout* rows) {
  rows->element_stride = pieces.stride;
  rows->group_elems = pieces.in_group;
  rows->group_stride = pieces.group_stride;
}

}  // namespace

bool PlaneBatch::Add(const MoveJob& job, const kvevict_plane& plane,
                     const kvevict_plane& to, uint64_t most_bytes) {
  GatherParams& p = params;
  RowLayout rows = LayoutOf(*job.view, plane);
  RowLayout to_rows = LayoutOf(job.target(), to);
  uint32_t row_bytes = RowBytes(plane);
  const uint32_t n_heads = job.view->n_kv_heads;
  const uint64_t plane_bytes =
      uint64_t{job.keep.count.most} * n_heads * row_bytes;
  const uint32_t piece_bytes = std::gcd(PieceBytes(plane), PieceBytes(to));
  const uint32_t n_pieces = row_bytes / piece_bytes;
  SetPieces(PiecesOf(plane, piece_bytes), &rows);
  SetPieces(PiecesOf(to, piece_bytes), &to_rows);
  row_bytes = piece_bytes;
  const bool is_first = p.n_planes == 0;
  const uint64_t keep = AddressOf(job.keep.slots);
  const uint64_t table = AddressOf(job.view->block_table);
  const uint64_t to_table = AddressOf(job.target().block_table);
  GatherPlane entry{};
  const bool in_reach =
      FindDistance(is_first ? keep : p.keep, keep, &entry.keep) &&
      FindDistance(is_first ? table : p.tables, table, &entry.table) &&
      FindDistance(is_first ? to_table : p.to_tables, to_table,
                   &entry.to_table);
  const bool alike = in_reach && (p.keep == 0) == (keep == 0) &&
                     SameLayout(p.rows, rows) && SameLayout(p.to, to_rows) &&
                     p.row_bytes == row_bytes && p.n_pieces == n_pieces &&
                     p.n_heads == n_heads && p.n_lists == job.keep.n_lists &&
                     in_place == (job.destination == nullptr) &&
                     p.keep_stride == KeepStride(job.keep) &&
                     InOneTable(counts, job.keep.count);
  const bool has_room = p.n_planes < GatherParams::kMaxPlanes &&
                        n_bytes + plane_bytes <= most_bytes;
  if (!is_first && !(alike && has_room)) return false;
  if (is_first) {
    p.rows = rows;
    p.to = to_rows;
    p.row_bytes = row_bytes;
    p.n_pieces = n_pieces;
    p.n_heads = n_heads;
    p.n_lists = job.keep.n_lists;
    in_place = job.destination == nullptr;
    p.keep_stride = KeepStride(job.keep);
    p.keep = keep;
    p.tables = table;
    p.to_tables = to_table;
    counts = job.keep.count;
    p.counts = Counts(counts).table();
  }
  entry.base = BaseOf(plane);
  entry.to = BaseOf(to);
  entry.n_keep = job.keep.count.most;
  entry.first_count = Counts(counts).FirstOf(job.keep.count);
  entry.first_slot = job.first_slot;
  p.planes[p.n_planes++] = entry;
  longest = std::max(longest, job.keep.count.most);
  n_bytes += plane_bytes;
  return true;
}

}  // namespace kvevict::cuda
