// Compaction and reordering on the CPU: an item is a layer and head; it moves
// all planes.
#include "core/backend_cpu_move.h"

#include <algorithm>

#include "core/context.h"
#include "core/kernels/gather_rows.h"
#include "core/kernels/reorder_rows.h"
#include "core/view.h"

namespace kvevict {
namespace {

constexpr size_t kCacheLine = 64;

bool IsPacked(const kvevict_plane& plane) {
  return plane.dtype == KVEVICT_DTYPE_OPAQUE ||
         ElementStride(plane) ==
             int64_t{ElementBytes(static_cast<DType>(plane.dtype))};
}

// Heads that share a list and lie side by side move as one wide row.
bool HeadsAreOneRow(const kvevict_view& view, const kvevict_plane& plane) {
  return IsPacked(plane) &&
         plane.head_stride_bytes == int64_t{RowBytes(plane)} &&
         uint64_t{view.n_kv_heads} * RowBytes(plane) <= UINT32_MAX;
}

// The rows that a head's item moves of a plane; none of row_bytes 0 where
// another head's item has them.
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

const int32_t* ListOf(const LayerJob& job, uint32_t head, uint32_t n_lists) {
  return job.keep + (n_lists == 1 ? 0 : uint64_t{head} * job.n_keep);
}

// ---- Scratch of reordering: the moves of all lists, a row per worker ----

CheckedSize MovesBytes(const LayerJob& job) {
  return (CheckedSize(MoveWords(job.n_keep)) * CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

CheckedSize SavedRowBytes(const LayerJob& job, uint32_t n_lists) {
  uint32_t widest = 0;
  ForEachPlane(*job.view, [&](const kvevict_plane& plane) {
    widest = std::max(widest, RowsOf(*job.view, plane, 0, n_lists).row_bytes);
  });
  return CheckedSize(widest).AlignUp(kCacheLine);
}

}  // namespace

Status CpuCompact(const Context& context, Stream, const CompactArgs& args) {
  if (args.jobs.empty()) return Status();
  const uint32_t n_heads = args.jobs[0].view->n_kv_heads;
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const LayerJob& job = args.jobs[item / n_heads];
    const uint32_t head = item % n_heads;
    ForEachPlane(*job.view, [&](const kvevict_plane& plane) {
      const MovedRows rows = RowsOf(*job.view, plane, head, args.n_lists);
      if (rows.row_bytes == 0) return;
      GatherRowsInPlace({rows, ListOf(job, head, args.n_lists), job.n_keep});
    });
  });
  return Status();
}

CheckedSize CpuReorderScratchBytes(const Context& context, const LayerJob& job,
                                   uint32_t n_lists) {
  if (job.n_keep == 0) return CheckedSize(0);
  return CheckedSize(n_lists) * MovesBytes(job) +
         CheckedSize(context.n_workers()) * SavedRowBytes(job, n_lists);
}

Status CpuReorder(const Context& context, Stream, const ReorderArgs& args) {
  const LayerJob& job = args.job;
  if (job.n_keep == 0) return Status();
  const size_t moves_bytes = MovesBytes(job).value();
  const size_t row_bytes = SavedRowBytes(job, args.n_lists).value();
  const auto moves = [&](uint32_t list) {
    return reinterpret_cast<int32_t*>(args.scratch.data() + list * moves_bytes);
  };
  context.ParallelFor(args.n_lists, [&](uint32_t list, uint32_t) {
    OrderMoves(ListOf(job, list, args.n_lists), job.n_keep, moves(list));
  });
  uint8_t* const saved_rows = args.scratch.data() + args.n_lists * moves_bytes;
  context.ParallelFor(
      job.view->n_kv_heads, [&](uint32_t head, uint32_t worker) {
        ForEachPlane(*job.view, [&](const kvevict_plane& plane) {
          const MovedRows rows = RowsOf(*job.view, plane, head, args.n_lists);
          if (rows.row_bytes == 0) return;
          ReorderRowsInPlace({rows, ListOf(job, head, args.n_lists),
                              moves(args.n_lists == 1 ? 0 : head),
                              saved_rows + worker * row_bytes});
        });
      });
  return Status();
}

}  // namespace kvevict
