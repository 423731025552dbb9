// Subtracts the redundancy of keys from their scores. A work item is a layer
// and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/redundancy.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds RedundancyScratch(const Context& context, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  return SharesOf(context, CheckedSize(RedundancyScratchBytes(size.n_tokens,
                                                              g.k_head_dim)));
}

Status RunSubtractRedundancy(const Context& context, Stream,
                             const SubtractRedundancyArgs& args) {
  const Policy& policy = args.policy;
  ForEachHead(context, args,
              [&](const ShapeJob& job, uint32_t head, uint32_t worker) {
                SubtractRedundancy(
                    context.simd(),
                    {HeadRows(*job.scored->view, job.scored->view->k, head),
                     job.scored->tokens.Of(head), args.layer.k_head_dim,
                     static_cast<float>(policy.similarity),
                     static_cast<float>(1.0 - policy.redundancy),
                     static_cast<float>(policy.redundancy),
                     job.scores + uint64_t{head} * job.scored->tokens.most,
                     ShareOf(context, args.scratch, worker).data()});
              });
  return Status();
}

}  // namespace

const Op<SubtractRedundancyArgs> kOp_subtract_redundancy = {
    RunSubtractRedundancy, RedundancyScratch};

}  // namespace kvevict::cpu
