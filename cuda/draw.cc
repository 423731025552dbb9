// Divides scores by drawn numbers: one launch.
#include "cuda/kernels/draw.h"

#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

Status CheckDraw(const Context& context, Stream stream, const DrawArgs&) {
  return Require(context, stream, ModuleId::draw);
}

Status RunDraw(const Context& context, Stream stream, const DrawArgs& args) {
  const auto together = [](const ShapeJob& a, const ShapeJob& b) {
    return InOneTable(a.scored->tokens, b.scored->tokens) &&
           InOneTable(a.scored->slots.n_kept, b.scored->slots.n_kept) &&
           a.scored->slots.n_lists == b.scored->slots.n_lists;
  };
  return ForEachBatch(
      args.jobs, DrawParams::kMaxLayers, together, [&](Jobs<ShapeJob> batch) {
        const Counts tokens(batch.front().scored->tokens);
        const Counts kept(batch.front().scored->slots.n_kept);
        DrawParams p{};
        p.seed = args.seed;
        p.tokens = tokens.table();
        p.kept = kept.table();
        p.slot_lists = batch.front().scored->slots.n_lists;
        for (size_t i = 0; i < batch.size(); ++i) {
          const ShapeJob& job = batch[i];
          p.layers[i] = {
              AddressOf(job.scores),   ParamsOf(job.scored->slots, kept),
              job.scored->tokens.most, tokens.FirstOf(job.scored->tokens),
              job.scored->n_seen,      job.scored->layer};
        }
        return Launch(context, stream, KernelId::draw,
                      {BlocksFor(LongestOf(batch), kDrawThreads),
                       args.layer.n_kv_heads, Size(batch), kDrawThreads},
                      p);
      });
}

}  // namespace

const Op<DrawArgs> kOp_draw = {RunDraw, Op<DrawArgs>::NoScratch, CheckDraw};

}  // namespace kvevict::cuda
