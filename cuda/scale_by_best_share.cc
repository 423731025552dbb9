// Multiplies scores by the share of a list's best in all of them: one launch.
#include "cuda/list_keys.h"
#include "cuda/ops.h"

namespace kvevict::cuda {
namespace {

Status RunScaleByBestShare(const Context& context, Stream stream,
                           const BestArgs& args) {
  return ForBestOf(context, stream, args, KernelId::scale_by_best_share, false,
                   [](const BestArgs& of, const SelectJob& job) {
                     return HeadSplit::RoomOf(job.budget, of.select.forced);
                   });
}

}  // namespace

const Op<BestArgs> kOp_scale_by_best_share = {RunScaleByBestShare};

}  // namespace kvevict::cuda
