// Keys against the filters of their heads: an item is a layer and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/key_filter.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

ScratchNeeds ScratchBytes(const Context& context,
                          const kvevict_layer_geometry& g,
                          const kvevict_policy&, uint32_t, uint32_t) {
  return SharesOf(context, CheckedSize(KeyFilterScratchFloats(g.k_head_dim)) *
                               CheckedSize(sizeof(float)));
}

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  ForEachHead(
      context, args, [&](const ScoreJob& job, uint32_t head, uint32_t worker) {
        FilterKeys(context.simd(),
                   {HeadRows(*job.view, job.view->k, head), job.tokens.Of(head),
                    g.k_head_dim,
                    job.key_filter.data + head * job.key_filter.head_stride,
                    job.rows + uint64_t{head} * job.tokens.most,
                    reinterpret_cast<float*>(
                        ShareOf(context, args.scratch, worker).data())});
      });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_filter = {Run, ScratchBytes, nullptr};

}  // namespace kvevict::cpu
