// Keys against their mean direction: three launches for layers that lie alike, two where
// one chunk of tokens is all there is.
#include <algorithm>

#include "core/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/key_diff.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool GoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         InOneTable(a.tokens, b.tokens);
}

Status RunBatch(const Context& context, Stream stream, const ScoreArgs& args,
                Jobs<ScoreJob> batch) {
  const kvevict_layer_geometry& g = args.layer;
  const kvevict_view& view = *batch.front().view;
  const Counts tokens(batch.front().tokens);
  const uint32_t n_tokens = LongestOf(batch);
  KeyDiffParams p{};
  p.keys = RowsOf(view, view.k);
  p.tokens = tokens.table();
  p.sums = AddressOf(args.scratch.data());
  p.n_kv_heads = g.n_kv_heads;
  p.n_chunks = KeyDiffChunks(n_tokens);
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    p.layers[i] = {job.view->k.data, AddressOf(job.view->block_table),
                   AddressOf(job.rows), job.tokens.most,
                   tokens.FirstOf(job.tokens)};
  }
  const auto launch = [&](KernelId kernel, uint32_t grid_x) {
    return Launch(context, stream, kernel,
                  {grid_x, g.n_kv_heads, Size(batch), kDiffThreads}, p);
  };
  KV_RETURN_IF_ERROR(launch(KernelId::key_sums, p.n_chunks));
  if (p.n_chunks > 1) {
    KV_RETURN_IF_ERROR(launch(KernelId::add_key_sums,
                              BlocksFor(p.keys.head_dim, kDiffColumns)));
  }
  return launch(KernelId::key_diffs,
                BlocksFor(n_tokens, KeyDiffBlockRows(p.keys.lanes)));
}

// Sums of the chunks of one batch.
ScratchNeeds ScratchBytes(const Context&, const kvevict_layer_geometry& g,
                          const kvevict_policy&, uint32_t n_layers,
                          uint32_t n_tokens) {
  return CheckedSize(std::min(n_layers, KeyDiffParams::kMaxLayers)) *
         CheckedSize(g.n_kv_heads) * CheckedSize(KeyDiffChunks(n_tokens)) *
         CheckedSize(g.k_head_dim) * CheckedSize(sizeof(float));
}

Status Check(const Context& context, Stream stream, const ScoreArgs& args) {
  return CheckReading(context, stream, args, {ModuleId::key_diff});
}

Status Run(const Context& context, Stream stream, const ScoreArgs& args) {
  return ForEachBatch(args.jobs, KeyDiffParams::kMaxLayers, GoTogether,
                      [&](Jobs<ScoreJob> batch) {
                        return RunBatch(context, stream, args, batch);
                      });
}

}  // namespace

const ScoreOp kOp_score_key_diff = {Run, ScratchBytes, nullptr, Check};

}  // namespace kvevict::cuda
