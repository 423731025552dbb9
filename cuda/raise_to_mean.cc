// Raises shaped scores to the mean of their head: one launch.
#include "cuda/kernels/raise_to_mean.h"

#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

Status CheckRaiseToMean(const Context& context, Stream stream,
                        const RaiseToMeanArgs&) {
  return Require(context, stream, ModuleId::raise_to_mean);
}

Status RunRaiseToMean(const Context& context, Stream stream,
                      const RaiseToMeanArgs& args) {
  const auto together = [](const ShapeJob& a, const ShapeJob& b) {
    return InOneTable(a.scored->tokens, b.scored->tokens);
  };
  return ForEachBatch(
      args.jobs, RaiseParams::kMaxLayers, together, [&](Jobs<ShapeJob> batch) {
        const Counts tokens(batch.front().scored->tokens);
        RaiseParams p{};
        p.n_unpooled = args.n_unpooled;
        p.tokens = tokens.table();
        for (size_t i = 0; i < batch.size(); ++i) {
          const ShapeJob& job = batch[i];
          p.layers[i] = {AddressOf(job.scores), job.scored->tokens.most,
                         tokens.FirstOf(job.scored->tokens)};
        }
        return Launch(context, stream, KernelId::raise_to_mean,
                      {args.layer.n_kv_heads, Size(batch), 1, kRaiseThreads},
                      p);
      });
}

}  // namespace

const Op<RaiseToMeanArgs> kOp_raise_to_mean = {
    RunRaiseToMean, Op<RaiseToMeanArgs>::NoScratch, CheckRaiseToMean};

}  // namespace kvevict::cuda
