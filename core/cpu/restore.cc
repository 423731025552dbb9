// Compaction taken back: an item is a layer and head; it moves all planes.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/cpu/plane_rows.h"
#include "core/kernels/restore_rows.h"
#include "core/view.h"

namespace kvevict::cpu {

Status Run_restore(const Context& context, Stream, const RestoreArgs& args) {
  if (args.jobs.empty()) return Status();
  uint32_t n_heads = 0;
  for (const MoveJob& job : args.jobs) {
    n_heads = std::max(n_heads, job.view->n_kv_heads);
  }
  const uint32_t n_items = static_cast<uint32_t>(args.jobs.size() * n_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const MoveJob& job = args.jobs[item / n_heads];
    const uint32_t head = item % n_heads;
    if (head >= job.view->n_kv_heads) return;
    const int32_t* const evicted = job.keep.ListOf(head);
    const uint32_t n_evicted = job.keep.CountOf(head);
    const uint32_t n_rows =
        static_cast<uint32_t>(evicted[n_evicted]) + job.first_slot;
    const auto restore = [&](const kvevict_plane& plane,
                             const kvevict_plane& saved) {
      const RowPair rows = RowsOf(*job.view, plane, *job.destination, saved,
                                  head, job.keep.n_lists);
      if (rows.from.row_bytes == 0) return;
      RestoreRows(context.simd(),
                  {rows.from, rows.to, evicted, n_evicted, n_rows});
    };
    ForEachPlanePair(*job.view, *job.destination, restore,
                     job.shared_companions);
  });
  return Status();
}

}  // namespace kvevict::cpu
