// Multiplies shaped scores by weights: one launch for layers with the same
// layout.
#include "cuda/alignment.h"
#include "cuda/kernels/row_norm.h"
#include "cuda/kernels/weigh.h"
#include "cuda/ops.h"
#include "cuda/row_norms.h"

namespace kvevict::cuda {
namespace {

bool ByNorms(const Policy& policy) {
  return policy.weight == ValueWeight::kNorm;
}

bool WeighTogether(const ShapeJob& a, const ShapeJob& b) {
  return InOneTable(a.scored->tokens, b.scored->tokens) &&
         InOneTable(a.scored->slots.n_kept, b.scored->slots.n_kept) &&
         a.scored->slots.n_lists == b.scored->slots.n_lists &&
         a.scored->weights.head_stride == b.scored->weights.head_stride;
}

Status CheckWeights(const Context& context, Stream stream,
                    const ApplyWeightsArgs& args) {
  if (!ByNorms(args.policy)) return Require(context, stream, ModuleId::weigh);
  for (const ShapeJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(
        CheckRowsAligned("values", *job.scored->view, job.scored->view->v));
  }
  return RequireReader(context, stream, args.jobs, ModuleId::row_norm,
                       {&kvevict_view::v});
}

Status RunApplyWeights(const Context& context, Stream stream,
                       const ApplyWeightsArgs& args) {
  const auto epsilon = static_cast<float>(args.policy.epsilon);
  if (ByNorms(args.policy)) {
    RowNormParams p{};
    p.use = kNormWeighs;
    p.epsilon = epsilon;
    return LaunchRowNorms(context, stream, args.jobs, &kvevict_view::v,
                          &ShapeJob::scores, p);
  }
  const auto run = [&](Jobs<ShapeJob> batch) {
    const Counts tokens(batch.front().scored->tokens);
    WeighParams p{};
    p.weight_head_stride = batch.front().scored->weights.head_stride;
    p.tokens = tokens.table();
    p.n_kv_heads = args.layer.n_kv_heads;
    p.epsilon = epsilon;
    p.shares = args.policy.share == WeightShare::kHeads;
    p.slot_lists = batch.front().scored->slots.n_lists;
    const Counts kept(batch.front().scored->slots.n_kept);
    p.kept = kept.table();
    for (size_t i = 0; i < batch.size(); ++i) {
      const ShapeJob& job = batch[i];
      p.layers[i] = {AddressOf(job.scores), AddressOf(job.scored->weights.data),
                     job.scored->tokens.most,
                     tokens.FirstOf(job.scored->tokens),
                     ParamsOf(job.scored->slots, kept)};
    }
    return Launch(context, stream, KernelId::weigh_scores,
                  {BlocksFor(LongestOf(batch), kWeighThreads), p.n_kv_heads,
                   Size(batch), kWeighThreads},
                  p);
  };
  return ForEachBatch(args.jobs, WeighParams::kMaxLayers, WeighTogether, run);
}

}  // namespace

const Op<ApplyWeightsArgs> kOp_apply_weights = {
    RunApplyWeights, Op<ApplyWeightsArgs>::NoScratch, CheckWeights};

}  // namespace kvevict::cuda
