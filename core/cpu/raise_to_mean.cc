// Raises shaped scores to the mean of their head. A work item is a layer and KV
// head.
#include "core/kernels/raise_to_mean.h"

#include "core/context.h"
#include "core/cpu/cpu.h"

namespace kvevict::cpu {
namespace {

Status RunRaiseToMean(const Context& context, Stream,
                      const RaiseToMeanArgs& args) {
  ForEachHead(context, args, [&](const ShapeJob& job, uint32_t head, uint32_t) {
    RaiseToMean(context.simd(),
                job.scores + uint64_t{head} * job.scored->tokens.most,
                job.scored->tokens.Of(head) - args.n_unpooled);
  });
  return Status();
}

}  // namespace

const Op<RaiseToMeanArgs> kOp_raise_to_mean = {RunRaiseToMean};

}  // namespace kvevict::cpu
