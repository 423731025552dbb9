// Merging: three launches for layers with the same layout, four if a fraction
// merges, and more if there are many products.
#include <algorithm>

#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/check_keep.h"
#include "cuda/kernels/merge.h"
#include "cuda/launch.h"
#include "cuda/launch_parts.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

static_assert(kMergeValues == uint32_t{KVEVICT_MERGE_VALUES} &&
              kMergePivot == uint32_t{KVEVICT_MERGE_PIVOT} &&
              kMergeWeighted == uint32_t{KVEVICT_MERGE_WEIGHTED});

// The most layers whose scratch is used at once, if there is room.
constexpr uint32_t kMostInScratch = 16;

bool HasValues(const MoveJob& job) { return IsPresent(job.view->v); }

bool MergeTogether(const MoveJob& a, const MoveJob& b) {
  const kvevict_view& x = *a.view;
  const kvevict_view& y = *b.view;
  return a.merge == b.merge && x.n_kv_heads == y.n_kv_heads &&
         x.k.dtype == y.k.dtype && x.k.head_dim == y.k.head_dim &&
         ReadAlike(x, x.k, y, y.k) && HasValues(a) == HasValues(b) &&
         x.v.dtype == y.v.dtype && x.v.head_dim == y.v.head_dim &&
         ReadAlike(x, x.v, y, y.v) && a.keep.n_lists == b.keep.n_lists &&
         KeepStride(a.keep) == KeepStride(b.keep) &&
         InOneTable(a.tokens, b.tokens) &&
         InOneTable(a.keep.count, b.keep.count);
}

// Four numbers for each row of a layer, and a cutoff for each head.
CheckedSize NoteBytes(uint32_t n_kv_heads, uint32_t n_tokens) {
  return (CheckedSize(n_kv_heads) * CheckedSize(n_tokens) *
          CheckedSize(4 * sizeof(float)))
      .AlignUp(16);
}
CheckedSize CutoffBytes(uint32_t n_kv_heads) {
  return (CheckedSize(n_kv_heads) * CheckedSize(sizeof(float))).AlignUp(16);
}
CheckedSize LayerBytes(uint32_t n_kv_heads, uint32_t n_tokens) {
  return NoteBytes(n_kv_heads, n_tokens) + CutoffBytes(n_kv_heads);
}

// Multiply-adds of `rows` keys that go.
CheckedSize ProductsOf(const MoveJob& job, uint32_t n_keep, uint32_t rows) {
  return CheckedSize(job.view->n_kv_heads) * CheckedSize(job.view->k.head_dim) *
         CheckedSize(n_keep) * CheckedSize(rows);
}

Status RunBatch(const Context& context, Stream stream, Jobs<MoveJob> batch,
                std::span<uint8_t> scratch) {
  const MoveJob& first = batch.front();
  const kvevict_view& view = *first.view;
  const Counts tokens(first.tokens);
  const Counts counts(first.keep.count);
  MergeParams p{};
  p.stride = LongestOf(batch);
  p.keys = RowsOf(view, view.k);
  if (HasValues(first)) p.values = RowsOf(view, view.v);
  p.tokens = tokens.table();
  p.counts = counts.table();
  p.n_kv_heads = view.n_kv_heads;
  p.rows = AddressOf(scratch.data());
  p.cutoffs = p.rows + batch.size() * NoteBytes(p.n_kv_heads, p.stride).value();
  p.n_lists = first.keep.n_lists;
  p.keep_stride = KeepStride(first.keep);
  p.rule = static_cast<uint32_t>(first.merge.rule);
  if (!first.merge.MergesKeys()) {
    p.threshold = static_cast<float>(first.merge.threshold);
    p.quantile = static_cast<float>(1.0 - first.merge.fraction);
  }
  uint32_t most_kept = 1;
  uint32_t most_gone = 1;
  for (size_t i = 0; i < batch.size(); ++i) {
    const MoveJob& job = batch[i];
    const ListCounts& keep = job.keep.count;
    p.layers[i] = {BaseOf(job.view->k),
                   BaseOf(job.view->v),
                   AddressOf(job.view->block_table),
                   AddressOf(job.keep.slots),
                   job.tokens.most,
                   keep.most,
                   tokens.FirstOf(job.tokens),
                   counts.FirstOf(keep)};
    most_kept = std::max(most_kept, keep.most);
    most_gone =
        std::max(most_gone, keep.each == nullptr ? job.tokens.most - keep.most
                                                 : job.tokens.most);
  }
  const auto launch = [&](KernelId kernel, uint32_t grid_x) {
    return Launch(context, stream, kernel,
                  {grid_x, p.n_kv_heads, Size(batch), kMergeThreads}, p);
  };
  KV_RETURN_IF_ERROR(
      launch(KernelId::merge_norms, BlocksFor(p.stride, kMergeThreads)));
  KV_RETURN_IF_ERROR(LaunchInParts(
      BlocksFor(most_gone, kCosineTile),
      CheckedSize(batch.size()) * ProductsOf(first, most_kept, kCosineTile),
      [&](uint32_t first_tile, uint32_t n) {
        p.first_tile = first_tile;
        return launch(KernelId::merge_search, n);
      }));
  if (p.quantile != 0.0f) {
    KV_RETURN_IF_ERROR(Launch(context, stream, KernelId::merge_cutoff,
                              {p.n_kv_heads, Size(batch), 1, kMergeThreads},
                              p));
  }
  return launch(KernelId::merge_rows, BlocksFor(most_kept, kMergeRows));
}

ScratchNeeds MergeScratch(const Context&, const MergeArgs::Size& size) {
  const CheckedSize bytes = LayerBytes(size.n_kv_heads, size.n_tokens);
  return {bytes, CheckedSize(std::min(size.n_layers, kMostInScratch)) * bytes};
}

Status CheckMerge(const Context& context, Stream stream,
                  const MergeArgs& args) {
  for (const MoveJob& job : args.jobs) {
    if (!job.merge.Merges()) continue;
    const kvevict_view& view = *job.view;
    KV_RETURN_IF_ERROR(CheckRowsAligned("keys", view, view.k));
    if (HasValues(job)) {
      KV_RETURN_IF_ERROR(CheckRowsAligned("values", view, view.v));
    }
  }
  return Require(context, stream, ModuleId::merge);
}

Status RunMerge(const Context& context, Stream stream, const MergeArgs& args) {
  size_t largest = 1;
  uint32_t most_in_launch = MergeParams::kMaxLayers;
  for (const MoveJob& job : args.jobs) {
    if (!job.merge.Merges()) continue;
    most_in_launch = std::min(
        most_in_launch,
        MostInLaunch(ProductsOf(job, job.keep.count.most, kCosineTile)));
    largest = std::max(
        largest, LayerBytes(job.view->n_kv_heads, job.tokens.most).value());
    KV_RETURN_IF_ERROR(
        CheckKeepLists(context, stream, job, KeepOrder::kAscending, "keep"));
  }
  const size_t most =
      std::min<size_t>(args.scratch.size() / largest, most_in_launch);
  return ForEachBatch(args.jobs, most, MergeTogether, [&](Jobs<MoveJob> batch) {
    return batch.front().merge.Merges()
               ? RunBatch(context, stream, batch, args.scratch)
               : Status();
  });
}

}  // namespace

const Op<MergeArgs> kOp_merge = {RunMerge, MergeScratch, CheckMerge};

}  // namespace kvevict::cuda
