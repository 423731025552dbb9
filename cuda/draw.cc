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
    return InOneTable(a.tokens, b.tokens) &&
           InOneTable(a.slots.n_kept, b.slots.n_kept) &&
           a.slots.n_lists == b.slots.n_lists;
  };
  return ForEachBatch(
      args.jobs, DrawParams::kMaxLayers, together, [&](Jobs<ShapeJob> batch) {
        const Counts tokens(batch.front().tokens);
        const Counts kept(batch.front().slots.n_kept);
        DrawParams p{};
        p.seed = args.seed;
        p.tokens = tokens.table();
        p.kept = kept.table();
        p.slot_lists = batch.front().slots.n_lists;
        for (size_t i = 0; i < batch.size(); ++i) {
          const ShapeJob& job = batch[i];
          p.layers[i] = {AddressOf(job.scores),
                         ParamsOf(job.slots, kept),
                         job.tokens.most,
                         tokens.FirstOf(job.tokens),
                         job.n_seen,
                         job.layer};
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
