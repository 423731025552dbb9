// Multiplies scores by the share of a list's best in all of them. A work item
// is a layer and list.
#include <algorithm>

#include "core/cpu/cpu.h"
#include "core/cpu/select.h"
#include "core/kernels/best_share.h"

namespace kvevict::cpu {
namespace {

Status RunScaleByBestShare(const Context& context, Stream,
                           const BestArgs& args) {
  const SelectArgs& select = args.select;
  const SimdTarget simd = context.simd();
  ForEachList(context, select, [&](uint32_t item, uint32_t list) {
    const SelectJob& job = select.jobs[item];
    const uint64_t row = uint64_t{list} * job.tokens.most;
    const uint32_t room = HeadSplit::RoomOf(job.budget, select.forced);
    MakeKeys(context, select, job, list);
    ScaleByBestShare(simd, job.keys + row, job.tokens.Of(list), room,
                     job.scores + row, args.shapes[item].scores + row);
  });
  return Status();
}

}  // namespace

const Op<BestArgs> kOp_scale_by_best_share = {RunScaleByBestShare};

}  // namespace kvevict::cpu
