// Redundancy of keys off their scores: an item is a layer and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/redundancy.h"
#include "core/view/view.h"

namespace kvevict::cpu {

ScratchNeeds DiversifyScratchBytes(const Context& context,
                                   const kvevict_layer_geometry& g,
                                   const Policy& policy, uint32_t,
                                   uint32_t n_tokens) {
  if (policy.diverse_mass > 0.0) {
    return VaryScratchBytes(context, g, policy, n_tokens);
  }
  if (policy.redundancy == 0.0) return CheckedSize(0);
  return SharesOf(context,
                  CheckedSize(RedundancyScratchBytes(n_tokens, g.k_head_dim)));
}

Status Run_diversify(const Context& context, Stream,
                     const DiversifyArgs& args) {
  const Policy& policy = args.policy;
  ForEachHead(
      context, args, [&](const ShapeJob& job, uint32_t head, uint32_t worker) {
        SubtractRedundancy(
            context.simd(),
            {HeadRows(*job.view, job.view->k, head), job.tokens.Of(head),
             args.layer.k_head_dim, static_cast<float>(policy.similarity),
             static_cast<float>(1.0 - policy.redundancy),
             static_cast<float>(policy.redundancy),
             job.scores + uint64_t{head} * job.tokens.most,
             ShareOf(context, args.scratch, worker).data()});
      });
  return Status();
}

}  // namespace kvevict::cpu
