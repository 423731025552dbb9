// Reverts compaction. A work item moves all planes of a layer and head.
#include "core/cpu/cpu.h"
#include "core/cpu/plane_rows.h"
#include "core/kernels/restore_rows.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

Status RunRestore(const Context& context, Stream, const RestoreArgs& args) {
  if (args.jobs.empty()) return Status();
  ForEachHeadOf(context, args.jobs, [&](const MoveJob& job, uint32_t head) {
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

}  // namespace

const Op<RestoreArgs> kOp_restore = {RunRestore};

}  // namespace kvevict::cpu
