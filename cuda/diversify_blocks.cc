// Keeps blocks whose keys are most unlike: the keys of lists, and five launches
// for layers with the same layout, or more if there are many products.
#include <algorithm>

#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/similarity.h"
#include "cuda/kernels/topk.h"
#include "cuda/launch.h"
#include "cuda/launch_parts.h"
#include "cuda/list_keys.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

// The most layers whose scratch is used at once, if there is room.
constexpr uint32_t kMostInScratch = 16;

bool AreAlike(const ShapeJob& a, const ShapeJob& b) {
  return ReadAlike(*a.scored->view, a.scored->view->k, *b.scored->view,
                   b.scored->view->k);
}

// The scratch of layers, one part after the other; each is 16-byte aligned.
struct Scratch {
  uint64_t row_sums;
  uint64_t totals;
  uint64_t sums;
  uint64_t scales;
  uint64_t words;
  CheckedSize bytes{0};

  Scratch(uint64_t base, uint32_t n_layers, uint32_t n_heads, uint32_t head_dim,
          uint32_t n_tokens, uint32_t block) {
    const CheckedSize n = CheckedSize(n_layers) * CheckedSize(n_heads);
    const uint32_t n_blocks = n_tokens / block;
    const auto add = [&](CheckedSize elements, size_t size) {
      const uint64_t at = base + bytes.value();
      bytes = (bytes + n * elements * CheckedSize(size)).AlignUp(16);
      return at;
    };
    row_sums = add(CheckedSize(n_tokens), sizeof(int64_t));
    totals = add(CheckedSize(n_blocks), sizeof(int64_t));
    sums = add(CheckedSize(BlocksFor(n_tokens, kSimilarityChunk)) *
                   CheckedSize(head_dim),
               sizeof(float));
    scales = add(CheckedSize(n_tokens), sizeof(float));
    words = add(CheckedSize(SimilarityWords(n_blocks)), sizeof(uint32_t));
  }
};

Scratch ScratchOf(const DiversifyBlocksArgs& args, uint32_t n_layers) {
  return {
      AddressOf(args.scratch.data()), n_layers,      args.layer.n_kv_heads,
      args.layer.k_head_dim,          args.n_tokens, args.select.blocks.size};
}

// Multiply-adds of a layer by a tile of keys.
CheckedSize ProductsOf(const DiversifyBlocksArgs& args) {
  return CheckedSize(args.layer.n_kv_heads) *
         CheckedSize(args.layer.k_head_dim) * CheckedSize(args.n_tokens) *
         CheckedSize(kCosineTile);
}

Status RunBatch(const Context& context, Stream stream,
                const DiversifyBlocksArgs& args, Jobs<ShapeJob> batch,
                Jobs<SelectJob> lists, const Scratch& scratch) {
  const SelectArgs& select = args.select;
  const kvevict_view& view = *batch.front().scored->view;
  SimilarityParams p{};
  p.keys = RowsOf(view, view.k);
  p.row_sums = scratch.row_sums;
  p.totals = scratch.totals;
  p.sums = scratch.sums;
  p.scales = scratch.scales;
  p.words = scratch.words;
  p.n_lists = lists.front().keep.n_lists;
  p.n_kv_heads = args.layer.n_kv_heads;
  p.stride = args.n_tokens;
  p.n_chunks = BlocksFor(args.n_tokens, kSimilarityChunk);
  p.n_sink = select.forced.n_sink;
  p.n_recent = select.forced.n_recent;
  p.block = select.blocks.size;
  p.higher_wins = select.tie == KVEVICT_TIE_HIGHER_POSITION;
  p.mass = args.mass;
  for (size_t i = 0; i < batch.size(); ++i) {
    const kvevict_view& of_layer = *batch[i].scored->view;
    p.layers[i] = {BaseOf(of_layer.k),         AddressOf(of_layer.block_table),
                   AddressOf(batch[i].scores), AddressOf(lists[i].keys),
                   lists[i].tokens.most,       lists[i].keep.count.most};
  }
  const ModuleKey reader =
      ReaderOf(context, ModuleId::similarity, KindsOf(p.keys));
  const auto of_lists = [&](KernelId kernel) {
    return Launch(context, stream, reader, kernel,
                  {p.n_lists, Size(batch), 1, kSimilarityThreads}, p);
  };
  const auto of_heads = [&](KernelId kernel, uint32_t grid_x) {
    return Launch(context, stream, reader, kernel,
                  {grid_x, p.n_kv_heads, Size(batch), kSimilarityThreads}, p);
  };
  KV_RETURN_IF_ERROR(of_lists(KernelId::similarity_take));
  KV_RETURN_IF_ERROR(of_heads(KernelId::similarity_directions, p.n_chunks));
  if (p.n_chunks > 1) {
    KV_RETURN_IF_ERROR(
        of_heads(KernelId::similarity_sums,
                 BlocksFor(p.keys.head_dim, kSimilarityThreads)));
  }
  KV_RETURN_IF_ERROR(LaunchInParts(BlocksFor(args.n_tokens, kCosineTile),
                                   CheckedSize(batch.size()) * ProductsOf(args),
                                   [&](uint32_t first, uint32_t n) {
                                     p.first_tile = first;
                                     return of_heads(KernelId::similarity_rows,
                                                     n);
                                   }));
  return of_lists(KernelId::similarity_keep);
}

ScratchNeeds DiversityScratch(const Context&, const LayerSize& size) {
  const kvevict_layer_geometry& g = size.geometry;
  const auto bytes = [&](uint32_t n) {
    return Scratch(0, n, g.n_kv_heads, g.k_head_dim, size.n_tokens,
                   size.policy.select_block)
        .bytes;
  };
  return {bytes(1), bytes(std::min(size.n_layers, kMostInScratch))};
}

Status CheckDiversity(const Context& context, Stream stream,
                      const DiversifyBlocksArgs& args) {
  for (const ShapeJob& job : args.jobs) {
    KV_RETURN_IF_ERROR(CheckKeysAligned(*job.scored->view));
  }
  return RequireReader(context, stream, args.jobs, ModuleId::similarity,
                       {&kvevict_view::k});
}

// All lists of a layer have the same length.
Status RunDiversifyBlocks(const Context& context, Stream stream,
                          const DiversifyBlocksArgs& args) {
  KV_RETURN_IF_ERROR(ForEachBatch(args.select.jobs, SelectParams::kMaxLayers,
                                  SelectTogether, [&](Jobs<SelectJob> jobs) {
                                    SelectParams p{};
                                    return MakeKeys(context, stream,
                                                    args.select, jobs, &p);
                                  }));
  uint32_t most = 1;
  const uint32_t most_in_launch =
      std::min(SimilarityParams::kMaxLayers, MostInLaunch(ProductsOf(args)));
  while (most < most_in_launch &&
         ScratchOf(args, most + 1).bytes.value() <= args.scratch.size()) {
    ++most;
  }
  const Scratch scratch = ScratchOf(args, most);
  Jobs<SelectJob> lists = args.select.jobs;
  return ForEachBatch(args.jobs, most, AreAlike, [&](Jobs<ShapeJob> batch) {
    const Jobs<SelectJob> of_batch = lists.first(batch.size());
    lists = lists.subspan(batch.size());
    return RunBatch(context, stream, args, batch, of_batch, scratch);
  });
}

}  // namespace

const Op<DiversifyBlocksArgs> kOp_diversify_blocks = {
    RunDiversifyBlocks, DiversityScratch, CheckDiversity};

}  // namespace kvevict::cuda
