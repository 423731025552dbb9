// Compaction: an item is a layer and head; it moves all planes.
#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/cpu/plane_rows.h"
#include "core/kernels/gather_rows.h"
#include "core/view.h"

namespace kvevict::cpu {

Status Run_compact(const Context& context, Stream, const CompactArgs& args) {
  if (args.jobs.empty()) return Status();
  const uint32_t n_heads = args.jobs.front().view->n_kv_heads;
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const MoveJob& job = args.jobs[item / n_heads];
    const uint32_t head = item % n_heads;
    const auto move = [&](const kvevict_plane& plane) {
      const MovedRows rows = RowsOf(*job.view, plane, head, job.keep.n_lists);
      if (rows.row_bytes == 0) return;
      GatherRowsInPlace(context.simd(),
                        {rows, job.keep.ListOf(head), job.keep.count});
    };
    ForEachPlane(*job.view, move, job.shared_companions);
  });
  return Status();
}

}  // namespace kvevict::cpu
