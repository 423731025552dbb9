// Standardises scores over the heads of a layer: one launch.
#include "cuda/kernels/standardize.h"

#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

Status CheckStandardize(const Context& context, Stream stream,
                        const StandardizeArgs&) {
  return Require(context, stream, ModuleId::standardize);
}

Status RunStandardize(const Context& context, Stream stream,
                      const StandardizeArgs& args) {
  const auto together = [](const ShapeJob& a, const ShapeJob& b) {
    return InOneTable(a.scored->tokens, b.scored->tokens);
  };
  return ForEachBatch(
      args.jobs, StandardizeParams::kMaxLayers, together,
      [&](Jobs<ShapeJob> batch) {
        const Counts tokens(batch.front().scored->tokens);
        StandardizeParams p{};
        p.tokens = tokens.table();
        p.n_kv_heads = args.layer.n_kv_heads;
        for (size_t i = 0; i < batch.size(); ++i) {
          const ShapeJob& job = batch[i];
          p.layers[i] = {AddressOf(job.scores),
                         args.adds ? AddressOf(job.leverage) : 0,
                         job.scored->tokens.most,
                         tokens.FirstOf(job.scored->tokens),
                         job.scored->n_sink,
                         job.scored->n_recent,
                         job.blend,
                         0};
        }
        return Launch(context, stream, KernelId::standardize,
                      {Size(batch), 1, 1, kStandardizeThreads}, p);
      });
}

}  // namespace

const Op<StandardizeArgs> kOp_standardize = {
    RunStandardize, Op<StandardizeArgs>::NoScratch, CheckStandardize};

}  // namespace kvevict::cuda
