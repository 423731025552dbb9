// Subtracts the redundancy of keys from their scores: five launches for layers
// with the same layout, four if there is only one chunk of tokens, and more if
// there are many products.
#include <algorithm>

#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/redundancy.h"
#include "cuda/launch.h"
#include "cuda/launch_parts.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

// The most layers whose scratch is used at once, if there is room.
constexpr uint32_t kMostInScratch = 16;

bool SubtractTogether(const ShapeJob& a, const ShapeJob& b) {
  return ReadAlike(*a.scored->view, a.scored->view->k, *b.scored->view,
                   b.scored->view->k) &&
         InOneTable(a.scored->tokens, b.scored->tokens);
}

// The sums of a layer's chunks, and three numbers for each row.
CheckedSize SumBytes(const kvevict_layer_geometry& g, uint32_t n_tokens) {
  return (CheckedSize(g.n_kv_heads) * CheckedSize(RedundancyChunks(n_tokens)) *
          CheckedSize(g.k_head_dim) * CheckedSize(sizeof(float)))
      .AlignUp(16);
}
// Multiply-adds of a layer by `rows` keys.
CheckedSize ProductsOf(const kvevict_layer_geometry& g, uint32_t n_tokens,
                       uint32_t rows) {
  return CheckedSize(g.n_kv_heads) * CheckedSize(g.k_head_dim) *
         CheckedSize(n_tokens) * CheckedSize(rows);
}
CheckedSize NoteBytes(const kvevict_layer_geometry& g, uint32_t n_tokens) {
  return (CheckedSize(g.n_kv_heads) * CheckedSize(n_tokens) *
          CheckedSize(3 * sizeof(float)))
      .AlignUp(16);
}

Status RunBatch(const Context& context, Stream stream,
                const SubtractRedundancyArgs& args, Jobs<ShapeJob> batch,
                size_t n_in_scratch) {
  const kvevict_view& view = *batch.front().scored->view;
  const Counts tokens(batch.front().scored->tokens);
  const uint32_t n_tokens = LongestOf(batch);
  RedundancyParams p{};
  p.keys = RowsOf(view, view.k);
  p.tokens = tokens.table();
  p.sums = AddressOf(args.scratch.data());
  p.rows = p.sums + n_in_scratch * SumBytes(args.layer, args.n_tokens).value();
  p.stride = n_tokens;
  p.n_kv_heads = args.layer.n_kv_heads;
  p.n_chunks = RedundancyChunks(n_tokens);
  p.threshold = static_cast<float>(args.policy.similarity);
  p.score_weight = static_cast<float>(1.0 - args.policy.redundancy);
  p.weight = static_cast<float>(args.policy.redundancy);
  for (size_t i = 0; i < batch.size(); ++i) {
    const ShapeJob& job = batch[i];
    p.layers[i] = {BaseOf(job.scored->view->k),
                   AddressOf(job.scored->view->block_table),
                   AddressOf(job.scores), job.scored->tokens.most,
                   tokens.FirstOf(job.scored->tokens)};
  }
  const ModuleKey reader =
      ReaderOf(context, ModuleId::redundancy, KindsOf(p.keys));
  const auto launch = [&](KernelId kernel, uint32_t grid_x) {
    return Launch(context, stream, reader, kernel,
                  {grid_x, p.n_kv_heads, Size(batch), kRedundancyThreads}, p);
  };
  KV_RETURN_IF_ERROR(launch(KernelId::redundancy_directions, p.n_chunks));
  if (p.n_chunks > 1) {
    KV_RETURN_IF_ERROR(launch(KernelId::redundancy_sums,
                              BlocksFor(p.keys.head_dim, kRedundancyThreads)));
  }
  const auto launch_parts = [&](KernelId kernel, uint32_t grid_x,
                                CheckedSize products) {
    return LaunchInParts(grid_x, CheckedSize(batch.size()) * products,
                         [&](uint32_t first, uint32_t n) {
                           p.first_tile = first;
                           return launch(kernel, n);
                         });
  };
  KV_RETURN_IF_ERROR(launch_parts(
      KernelId::redundancy_search, BlocksFor(n_tokens, kCosineTile),
      ProductsOf(args.layer, n_tokens, kCosineTile)));
  // Columns compare as many numbers as there are pairs.
  KV_RETURN_IF_ERROR(
      launch_parts(KernelId::redundancy_columns, p.n_chunks,
                   CheckedSize(args.layer.n_kv_heads) * CheckedSize(n_tokens) *
                       CheckedSize(kRedundancyChunk)));
  return Launch(context, stream, reader, KernelId::redundancy_mix,
                {p.n_kv_heads, Size(batch), 1, kRedundancyThreads}, p);
}

ScratchNeeds RedundancyScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const CheckedSize bytes =
      SumBytes(g, size.n_tokens) + NoteBytes(g, size.n_tokens);
  return {bytes, CheckedSize(std::min(size.n_layers, kMostInScratch)) * bytes};
}

Status CheckRedundancy(const Context& context, Stream stream,
                       const SubtractRedundancyArgs& args) {
  for (const ShapeJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckKeysAligned(*job.scored->view));
  }
  return RequireReader(context, stream, args.jobs, ModuleId::redundancy,
                       {&kvevict_view::k});
}

Status RunSubtractRedundancy(const Context& context, Stream stream,
                             const SubtractRedundancyArgs& args) {
  const size_t bytes = (SumBytes(args.layer, args.n_tokens) +
                        NoteBytes(args.layer, args.n_tokens))
                           .value();
  const size_t most = std::min(
      {args.scratch.size() / bytes, size_t{RedundancyParams::kMaxLayers},
       size_t{
           MostInLaunch(ProductsOf(args.layer, args.n_tokens, kCosineTile))}});
  return ForEachBatch(args.jobs, most, SubtractTogether,
                      [&](Jobs<ShapeJob> batch) {
                        return RunBatch(context, stream, args, batch, most);
                      });
}

}  // namespace

const Op<SubtractRedundancyArgs> kOp_subtract_redundancy = {
    RunSubtractRedundancy, RedundancyScratch, CheckRedundancy};

}  // namespace kvevict::cuda
