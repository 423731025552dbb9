// Compaction. A work item moves all planes of a layer and head, K first. Rows
// that stay in their cache move down one after the other. Lists ascend, so kept
// row i comes from slot i or a later one, and overwrites no row that has yet to
// move.
#include "core/cpu/cpu.h"
#include "core/cpu/plane_rows.h"
#include "core/kernels/gather_rows.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

Status RunCompact(const Context& context, Stream, const CompactArgs& args) {
  if (args.jobs.empty()) return Status();
  ForEachHeadOf(context, args.jobs, [&](const MoveJob& job, uint32_t head) {
    const auto move = [&](const kvevict_plane& from, const kvevict_plane& to) {
      const RowPair rows =
          RowsOf(*job.view, from, job.target(), to, head, job.keep.n_lists);
      if (rows.from.row_bytes == 0) return;
      GatherRows(
          context.simd(),
          {rows.from, rows.to, job.destination == nullptr,
           job.keep.ListOf(head), job.keep.CountOf(head), job.first_slot});
    };
    ForEachPlanePair(*job.view, job.target(), move, job.shared_companions,
                     job.change);
  });
  return Status();
}

}  // namespace

const Op<CompactArgs> kOp_compact = {RunCompact};

}  // namespace kvevict::cpu
