// Norms of keys: an item is a layer and KV head.
#include "core/cpu/cpu.h"
#include "core/kernels/row_norm.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  ForEachHead(context, args, [&](const ScoreJob& job, uint32_t head, uint32_t) {
    ComputeRowNorms(
        context.simd(),
        {HeadRows(*job.view, job.view->k, head), 0, job.tokens.Of(head),
         g.k_head_dim, true, job.rows + uint64_t{head} * job.tokens.most});
  });
  return Status();
}

}  // namespace

const ScoreOp kOp_score_key_norm = {Run, NoScratch, nullptr};

}  // namespace kvevict::cpu
