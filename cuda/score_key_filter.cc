// Multiplies keys with the filters of their heads: one launch for layers with
// the same layout.
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/key_filter.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool KeyFilterJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         a.statistics.head_stride == b.statistics.head_stride &&
         InOneTable(a.tokens, b.tokens);
}

Status RunKeyFilterBatch(const Context& context, Stream stream,
                         const ScoreArgs& args, Jobs<ScoreJob> batch) {
  const kvevict_layer_geometry& g = args.layer;
  const kvevict_view& view = *batch.front().view;
  const Counts tokens(batch.front().tokens);
  KeyFilterParams p{};
  p.keys = RowsOf(view, view.k);
  p.tokens = tokens.table();
  p.filter_head_stride = batch.front().statistics.head_stride;
  p.n_kv_heads = g.n_kv_heads;
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    p.layers[i] = {BaseOf(job.view->k),
                   AddressOf(job.view->block_table),
                   AddressOf(job.statistics.data),
                   AddressOf(job.rows),
                   job.tokens.most,
                   tokens.FirstOf(job.tokens)};
  }
  return Launch(context, stream,
                ReaderOf(context, ModuleId::key_filter, KindsOf(p.keys)),
                KernelId::filter_keys,
                {BlocksFor(LongestOf(batch), KeyFilterBlockRows(p.keys.lanes)),
                 g.n_kv_heads, Size(batch), kFilterThreads},
                p);
}

Status CheckKeyFilter(const Context& context, Stream stream,
                      const ScoreArgs& args) {
  return CheckReading(context, stream, args, {ModuleId::key_filter});
}

Status RunKeyFilter(const Context& context, Stream stream,
                    const ScoreArgs& args) {
  return ForEachBatch(args.jobs, KeyFilterParams::kMaxLayers,
                      KeyFilterJobsGoTogether, [&](Jobs<ScoreJob> batch) {
                        return RunKeyFilterBatch(context, stream, args, batch);
                      });
}

}  // namespace

const ScoreOp kOp_score_key_filter = {RunKeyFilter, Op<ScoreArgs>::NoScratch,
                                      CheckKeyFilter};

}  // namespace kvevict::cuda
