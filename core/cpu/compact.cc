// Compaction: an item is a layer and head; it moves all planes.
#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/cpu/plane_rows.h"
#include "core/kernels/gather_rows.h"
#include "core/view.h"

namespace kvevict::cpu {

Status Run_compact(const Context& context, Stream, const CompactArgs& args) {
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
    const auto move = [&](const kvevict_plane& from, const kvevict_plane& to) {
      const RowPair rows =
          RowsOf(*job.view, from, job.target(), to, head, job.keep.n_lists);
      if (rows.from.row_bytes == 0) return;
      GatherRows(
          context.simd(),
          {rows.from, rows.to, job.destination == nullptr,
           job.keep.ListOf(head), job.keep.CountOf(head), job.first_slot});
    };
    ForEachPlanePair(*job.view, job.target(), move, job.shared_companions);
  });
  return Status();
}

}  // namespace kvevict::cpu
