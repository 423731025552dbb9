// Norms of keys: an item is a layer and KV head.
#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/row_norm.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

Status Run(const Context& context, Stream, const ScoreArgs& args) {
  const kvevict_layer_geometry& g = args.layer;
  const uint32_t n_items =
      static_cast<uint32_t>(args.jobs.size() * g.n_kv_heads);
  context.ParallelFor(n_items, [&](uint32_t item, uint32_t) {
    const ScoreJob& job = args.jobs[item / g.n_kv_heads];
    const uint32_t head = item % g.n_kv_heads;
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
