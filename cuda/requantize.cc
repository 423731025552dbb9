// Rows that change on their way to another cache: one launch for planes that lie alike,
// whatever their layer.
#include "cuda/kernels/requantize.h"
#include "core/view.h"
#include "cuda/alignment.h"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/row_layout.h"

namespace kvevict::cuda {
namespace {

using Rows = kvevict_plane kvevict_view::*;

bool Changes(const MoveJob& job, Rows rows) {
  return rows == &kvevict_view::k ? job.change.k : job.change.v;
}

bool LieAlike(const kvevict_view& a, const kvevict_view& b, Rows rows) {
  return (a.*rows).dtype == (b.*rows).dtype &&
         (a.*rows).head_dim == (b.*rows).head_dim &&
         SameLayout(LayoutOf(a, a.*rows), LayoutOf(b, b.*rows)) &&
         HaveLikeNumbers(a, a.*rows, b, b.*rows);
}

bool GoTogether(const MoveJob& a, const MoveJob& b, Rows rows) {
  return Changes(a, rows) && Changes(b, rows) &&
         a.view->n_kv_heads == b.view->n_kv_heads &&
         LieAlike(*a.view, *b.view, rows) &&
         LieAlike(a.target(), b.target(), rows) &&
         a.keep.n_lists == b.keep.n_lists &&
         KeepStride(a.keep) == KeepStride(b.keep) &&
         InOneTable(a.keep.count, b.keep.count);
}

Status RunBatch(const Context& context, Stream stream, Jobs<MoveJob> batch,
                Rows rows) {
  const MoveJob& first = batch.front();
  if (!Changes(first, rows)) return Status();
  const Counts counts(first.keep.count);
  RequantizeParams p{};
  p.from = RowsOf(*first.view, first.view->*rows);
  p.to = RowsOf(first.target(), first.target().*rows);
  p.counts = counts.table();
  p.n_lists = first.keep.n_lists;
  p.keep_stride = KeepStride(first.keep);
  uint32_t longest = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const MoveJob& job = batch[i];
    const kvevict_plane& from = job.view->*rows;
    const kvevict_plane& to = job.target().*rows;
    p.planes[i] = {BaseOf(from),
                   BaseOf(to),
                   AddressOf(job.view->block_table),
                   AddressOf(job.target().block_table),
                   AddressOf(job.keep.slots),
                   NumbersOf(*job.view, from, false).base,
                   NumbersOf(*job.view, from, true).base,
                   NumbersOf(job.target(), to, false).base,
                   NumbersOf(job.target(), to, true).base,
                   job.keep.count.most,
                   counts.FirstOf(job.keep.count),
                   job.first_slot,
                   0};
    longest = std::max(longest, job.keep.count.most);
  }
  if (longest == 0) return Status();
  return Launch(
      context, stream,
      ReaderOf(context, ModuleId::requantize, {p.from.dtype, p.to.dtype}),
      KernelId::requantize_rows,
      {BlocksFor(longest, kRequantizeRows), first.view->n_kv_heads, Size(batch),
       kRequantizeThreads},
      p);
}

}  // namespace

Status CheckRequantizing(const Context& context, Stream stream,
                         Jobs<MoveJob> jobs) {
  for (const MoveJob& job : jobs) {
    for (const Rows rows : {&kvevict_view::k, &kvevict_view::v}) {
      if (!Changes(job, rows)) continue;
      const kvevict_plane& from = job.view->*rows;
      const kvevict_plane& to = job.target().*rows;
      KV_RETURN_IF_ERROR(CheckRowsAligned("rows", *job.view, from));
      KV_RETURN_IF_ERROR(CheckRowsAligned("destination", job.target(), to));
      KV_RETURN_IF_ERROR(Require(context, stream,
                                 ReaderOf(context, ModuleId::requantize,
                                          {static_cast<uint32_t>(from.dtype),
                                           static_cast<uint32_t>(to.dtype)})));
    }
  }
  return Status();
}

Status Run_requantize(const Context& context, Stream stream,
                      const RequantizeArgs& args) {
  for (const Rows rows : {&kvevict_view::k, &kvevict_view::v}) {
    KV_RETURN_IF_ERROR(ForEachBatch(
        args.jobs, RequantizeParams::kMaxPlanes,
        [&](const MoveJob& a, const MoveJob& b) {
          return GoTogether(a, b, rows);
        },
        [&](Jobs<MoveJob> batch) {
          return RunBatch(context, stream, batch, rows);
        }));
  }
  return Status();
}

}  // namespace kvevict::cuda
