// Reorders rows. A work item moves all planes of a head.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/cpu/plane_rows.h"
#include "core/kernels/reorder_rows.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

// Scratch: the moves of all lists, and a row per worker.

CheckedSize MovesBytes(const MoveJob& job) {
  return (CheckedSize(MoveWords(job.keep.count.most)) *
          CheckedSize(sizeof(int32_t)))
      .AlignUp(kCacheLine);
}

CheckedSize SavedRowBytes(const MoveJob& job) {
  uint32_t widest = 0;
  ForEachPlane(*job.view, [&](const kvevict_plane& plane) {
    widest = std::max(widest,
                      RowsOf(*job.view, plane, 0, job.keep.n_lists).row_bytes);
  });
  return CheckedSize(widest).AlignUp(kCacheLine);
}

ScratchNeeds ReorderScratchBytes(const Context& context, const MoveJob& job) {
  if (job.keep.count.most == 0) return CheckedSize(0);
  return CheckedSize(job.keep.n_lists) * MovesBytes(job) +
         CheckedSize(context.n_workers()) * SavedRowBytes(job);
}

void Reorder(const Context& context, const MoveJob& job,
             std::span<uint8_t> scratch) {
  const KeepLists& keep = job.keep;
  if (keep.count.most == 0) return;
  const size_t moves_bytes = MovesBytes(job).value();
  const size_t row_bytes = SavedRowBytes(job).value();
  const auto moves = [&](uint32_t list) {
    return reinterpret_cast<int32_t*>(scratch.data() + list * moves_bytes);
  };
  context.ParallelFor(keep.n_lists, [&](uint32_t list, uint32_t) {
    OrderMoves(keep.List(list), keep.count.Of(list), moves(list));
  });
  uint8_t* const saved_rows = scratch.data() + keep.n_lists * moves_bytes;
  context.ParallelFor(job.view->n_kv_heads, [&](uint32_t head,
                                                uint32_t worker) {
    ForEachPlane(
        *job.view,
        [&](const kvevict_plane& plane) {
          const MovedRows rows = RowsOf(*job.view, plane, head, keep.n_lists);
          if (rows.row_bytes == 0) return;
          ReorderRowsInPlace(
              context.simd(),
              {rows, keep.ListOf(head), moves(keep.n_lists == 1 ? 0 : head),
               saved_rows + worker * row_bytes});
        },
        job.shared_companions);
  });
}

Status RunReorder(const Context& context, Stream, const ReorderArgs& args) {
  for (const MoveJob& job : args.jobs) Reorder(context, job, args.scratch);
  return Status();
}

}  // namespace

const Op<ReorderArgs> kOp_reorder = {RunReorder, ReorderScratchBytes};

}  // namespace kvevict::cpu
