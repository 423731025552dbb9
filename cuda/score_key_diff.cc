// Compares keys with their mean direction: three launches for layers with the
// same layout, two if there is only one chunk of tokens, and one launch block
// by block.
#include <algorithm>

#include "core/policy/policy.h"
#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/key_diff.h"
#include "cuda/kernels/key_diff_blocks.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

bool KeyDiffJobsGoTogether(const ScoreJob& a, const ScoreJob& b) {
  return ReadAlike(*a.view, a.view->k, *b.view, b.view->k) &&
         InOneTable(a.tokens, b.tokens);
}

Status RunKeyDiffBatch(const Context& context, Stream stream,
                       const ScoreArgs& args, Jobs<ScoreJob> batch) {
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
    p.layers[i] = {BaseOf(job.view->k), AddressOf(job.view->block_table),
                   AddressOf(job.rows), job.tokens.most,
                   tokens.FirstOf(job.tokens)};
  }
  const ModuleKey reader =
      ReaderOf(context, ModuleId::key_diff, KindsOf(p.keys));
  const auto launch = [&](KernelId kernel, uint32_t grid_x) {
    return Launch(context, stream, reader, kernel,
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

// ---- Block by block ----

bool GoThroughTogether(const ScoreJob& a, const ScoreJob& b) {
  return KeyDiffJobsGoTogether(a, b) && InOneTable(a.keep, b.keep);
}

Status RunBlocks(const Context& context, Stream stream, const ScoreArgs& args,
                 Jobs<ScoreJob> batch) {
  const kvevict_layer_geometry& g = args.layer;
  const kvevict_view& view = *batch.front().view;
  const Counts tokens(batch.front().tokens);
  const Counts keep(batch.front().keep);
  KeyDiffBlocksParams p{};
  p.keys = RowsOf(view, view.k);
  p.tokens = tokens.table();
  p.keep = keep.table();
  p.scratch = AddressOf(args.scratch.data());
  p.n_kv_heads = g.n_kv_heads;
  p.n_most = LongestOf(batch);
  p.block = args.policy.block;
  p.higher_wins = TieOf(args.policy) == KVEVICT_TIE_HIGHER_POSITION;
  for (size_t i = 0; i < batch.size(); ++i) {
    const ScoreJob& job = batch[i];
    p.layers[i] = {BaseOf(job.view->k),        AddressOf(job.view->block_table),
                   AddressOf(job.rows),        job.tokens.most,
                   tokens.FirstOf(job.tokens), job.keep.most,
                   keep.FirstOf(job.keep)};
  }
  return Launch(context, stream,
                ReaderOf(context, ModuleId::key_diff_blocks, KindsOf(p.keys)),
                KernelId::key_diff_blocks,
                {g.n_kv_heads, Size(batch), 1, kSelectThreads}, p);
}

// ---- Both ----

// Scratch: the sums of the chunks of one batch, or what each head needs block
// by block.
ScratchNeeds KeyDiffScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  if (size.policy.block > 0) {
    return CheckedSize(
               std::min(size.n_layers, KeyDiffBlocksParams::kMaxLayers)) *
           CheckedSize(g.n_kv_heads) *
           CheckedSize(
               LayOutKeyDiffBlocks(g.k_head_dim, size.n_tokens).n_bytes);
  }
  return CheckedSize(std::min(size.n_layers, KeyDiffParams::kMaxLayers)) *
         CheckedSize(g.n_kv_heads) * CheckedSize(KeyDiffChunks(size.n_tokens)) *
         CheckedSize(g.k_head_dim) * CheckedSize(sizeof(float));
}

Status CheckKeyDiff(const Context& context, Stream stream,
                    const ScoreArgs& args) {
  return CheckReading(
      context, stream, args,
      {args.policy.block > 0 ? ModuleId::key_diff_blocks : ModuleId::key_diff});
}

Status RunKeyDiff(const Context& context, Stream stream,
                  const ScoreArgs& args) {
  if (args.policy.block > 0) {
    return ForEachBatch(args.jobs, KeyDiffBlocksParams::kMaxLayers,
                        GoThroughTogether, [&](Jobs<ScoreJob> batch) {
                          return RunBlocks(context, stream, args, batch);
                        });
  }
  return ForEachBatch(args.jobs, KeyDiffParams::kMaxLayers,
                      KeyDiffJobsGoTogether, [&](Jobs<ScoreJob> batch) {
                        return RunKeyDiffBatch(context, stream, args, batch);
                      });
}

}  // namespace

const ScoreOp kOp_score_key_diff = {RunKeyDiff, KeyDiffScratch, CheckKeyDiff};

}  // namespace kvevict::cuda
