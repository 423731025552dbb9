#include "cuda/plane_batch.h"

#include "cuda/launch.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

bool PlaneBatch::Add(const MoveJob& job, const kvevict_plane& plane,
                     uint64_t most_bytes) {
  GatherParams& p = params;
  RowLayout rows = LayoutOf(*job.view, plane);
  uint32_t row_bytes = RowBytes(plane);
  const uint32_t n_heads = job.view->n_kv_heads;
  const uint64_t plane_bytes =
      uint64_t{job.keep.count.most} * n_heads * row_bytes;
  uint32_t n_pieces = 1;
  if (plane.dtype == KVEVICT_DTYPE_OPAQUE ||
      rows.element_stride == int64_t{row_bytes / plane.head_dim}) {
    rows.element_stride = 0;  // packed
  } else {
    n_pieces = plane.head_dim;
    row_bytes /= plane.head_dim;
  }
  const bool alike = SameLayout(p.rows, rows) && p.row_bytes == row_bytes &&
                     p.n_pieces == n_pieces && p.n_heads == n_heads &&
                     p.n_lists == job.keep.n_lists &&
                     p.keep_stride == KeepStride(job.keep) &&
                     InOneTable(counts, job.keep.count);
  const bool has_room = p.n_planes < GatherParams::kMaxPlanes &&
                        n_bytes + plane_bytes <= most_bytes;
  if (p.n_planes > 0 && !(alike && has_room)) return false;
  p.rows = rows;
  p.row_bytes = row_bytes;
  p.n_pieces = n_pieces;
  p.n_heads = n_heads;
  p.n_lists = job.keep.n_lists;
  p.keep_stride = KeepStride(job.keep);
  if (p.n_planes == 0) counts = job.keep.count;
  p.counts = Counts(counts).table();
  p.planes[p.n_planes++] = {plane.data, AddressOf(job.view->block_table),
                            AddressOf(job.keep.slots), job.keep.count.most,
                            Counts(counts).FirstOf(job.keep.count)};
  longest = std::max(longest, job.keep.count.most);
  n_bytes += plane_bytes;
  return true;
}

}  // namespace kvevict::cuda
