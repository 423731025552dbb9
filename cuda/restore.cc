// Reverts compaction: one launch for planes with the same layout, of any layer.
// Lengths are restored next.
#include <limits>

#include "cuda/kernels/gather_rows.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/plane_batch.h"

namespace kvevict::cuda {
namespace {

Status RunRestore(const Context& context, Stream stream,
                  const RestoreArgs& args) {
  for (const ModuleId module : {ModuleId::restore_rows, ModuleId::positions}) {
    KV_RETURN_IF_ERROR(Require(context, stream, module));
  }
  constexpr uint64_t kAnyBytes = std::numeric_limits<uint64_t>::max();
  return ForEachPlaneBatch(args.jobs, kAnyBytes, [&](PlaneBatch& batch) {
    const uint32_t unit = ColumnUnit(GatherUnit(batch.params));
    const KernelId kernel = unit == 16  ? KernelId::restore_columns_16
                            : unit == 4 ? KernelId::restore_columns_4
                                        : KernelId::restore_columns_1;
    return Launch(context, stream, kernel,
                  {ColumnBlocks(batch.params, unit), batch.params.n_planes, 1,
                   kColumnThreads},
                  batch.params);
  });
}

}  // namespace

const Op<RestoreArgs> kOp_restore = {RunRestore};

}  // namespace kvevict::cuda
