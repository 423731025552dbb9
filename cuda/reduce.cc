#include "cuda/kernels/pool1d.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/reduce_rows.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {

ReduceParams ReductionOf(kvevict_reduce reduce, uint32_t n_terms) {
  ReduceParams p{};
  p.n_terms = n_terms;
  p.is_max = reduce == KVEVICT_REDUCE_MAX;
  p.scale =
      reduce == KVEVICT_REDUCE_MEAN ? 1.0f / static_cast<float>(n_terms) : 1.0f;
  return p;
}

Status LaunchReduction(const Context& context, Stream stream,
                       const ReduceParams& p, uint32_t longest,
                       uint32_t n_layers) {
  return Launch(context, stream, KernelId::reduce_rows,
                {ReduceBlocks(longest), p.n_out_rows, n_layers, kReduceThreads},
                p);
}

namespace {

Status RunReduce(const Context& context, Stream stream,
                 const ReduceArgs& args) {
  KV_RETURN_IF_ERROR(RequireSelection(context, stream));
  return ForEachBatch(args.jobs, ReduceParams::kMaxLayers,
                      [&](Jobs<ReduceJob> batch) {
                        ReduceParams p = ReductionOf(args.reduce, args.n_rows);
                        p.n_out_rows = 1;
                        for (size_t i = 0; i < batch.size(); ++i) {
                          const ReduceJob& job = batch[i];
                          p.layers[i] = {AddressOf(job.rows),
                                         AddressOf(job.out), job.n_tokens, 0};
                        }
                        return LaunchReduction(context, stream, p,
                                               LongestOf(batch), Size(batch));
                      });
}

}  // namespace

const Op<ReduceArgs> kOp_reduce = {RunReduce};

}  // namespace kvevict::cuda
