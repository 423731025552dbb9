// Rows that change on their way to another cache, or where they share numbers: one launch
// for planes that lie alike, whatever their layer.
#include "cuda/kernels/requantize.h"

#include <algorithm>

#include "core/view/view.h"
#include "cuda/alignment.h"
#include "cuda/kernels/regroup.h"
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

bool RequantizeTogether(const MoveJob& a, const MoveJob& b, Rows rows) {
  return Changes(a, rows) && Changes(b, rows) &&
         (a.destination == nullptr) == (b.destination == nullptr) &&
         a.view->n_kv_heads == b.view->n_kv_heads &&
         LieAlike(*a.view, *b.view, rows) &&
         LieAlike(a.target(), b.target(), rows) &&
         a.keep.n_lists == b.keep.n_lists &&
         KeepStride(a.keep) == KeepStride(b.keep) &&
         InOneTable(a.keep.count, b.keep.count);
}

bool IsGrouped(const CacheRows& rows) { return rows.scale.group_tokens != 0; }

// What a job takes: codes of groups by the one, rows that share nothing, and recent ones,
// by the other.
bool TakesRegroup(const RequantizeParams& p) { return IsGrouped(p.to); }
bool TakesRows(const RequantizeParams& p) {
  return p.in_place == 0 && (!IsGrouped(p.to) || p.to.recent.base != 0);
}

// What planes of a batch have in common; there are none yet.
RequantizeParams ParamsOf(const MoveJob& first, Rows rows) {
  RequantizeParams p{};
  p.from = RowsOf(*first.view, first.view->*rows);
  p.to = RowsOf(first.target(), first.target().*rows);
  p.counts = Counts(first.keep.count).table();
  p.n_lists = first.keep.n_lists;
  p.keep_stride = KeepStride(first.keep);
  p.in_place = first.destination == nullptr ? 1 : 0;
  return p;
}

ModuleKey ReaderOf(const Context& context, ModuleId module,
                   const RequantizeParams& p) {
  return ReaderOf(context, module, KindsOf(p.from) | KindsOf(p.to));
}

Status RunBatch(const Context& context, Stream stream, Jobs<MoveJob> batch,
                Rows rows) {
  const MoveJob& first = batch.front();
  if (!Changes(first, rows)) return Status();
  const Counts counts(first.keep.count);
  RequantizeParams p = ParamsOf(first, rows);
  uint32_t longest = 0;
  uint32_t n_groups = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    const MoveJob& job = batch[i];
    const kvevict_plane& from = job.view->*rows;
    const kvevict_plane& to = job.target().*rows;
    const uint32_t n_keep = job.keep.count.most;
    p.planes[i] = {BaseOf(from),
                   BaseOf(to),
                   AddressOf(job.view->block_table),
                   AddressOf(job.target().block_table),
                   AddressOf(job.keep.slots),
                   NumbersOf(*job.view, from, false).base,
                   NumbersOf(*job.view, from, true).base,
                   NumbersOf(job.target(), to, false).base,
                   NumbersOf(job.target(), to, true).base,
                   RecentRowsOf(*job.view, from).base,
                   RecentRowsOf(job.target(), to).base,
                   n_keep,
                   counts.FirstOf(job.keep.count),
                   job.first_slot,
                   0};
    longest = std::max(longest, n_keep);
    if (!IsGrouped(p.to)) continue;
    n_groups = std::max(n_groups, GroupsOf(p.to, job.first_slot, n_keep));
  }
  if (longest == 0) return Status();
  const uint32_t n_heads = first.view->n_kv_heads;
  if (TakesRegroup(p)) {
    p.groups_per_block = p.in_place != 0
                             ? n_groups
                             : BlocksFor(kRegroupRows, p.to.scale.group_tokens);
    const uint32_t n_runs = BlocksFor(n_groups, p.groups_per_block);
    const uint32_t n_columns = BlocksFor(RegroupColumns(p.to), kRegroupThreads);
    KV_RETURN_IF_ERROR(
        Launch(context, stream, ReaderOf(context, ModuleId::regroup, p),
               KernelId::regroup_rows,
               {n_columns * n_runs, n_heads, Size(batch), kRegroupThreads}, p));
  }
  if (!TakesRows(p)) return Status();
  return Launch(context, stream, ReaderOf(context, ModuleId::requantize, p),
                KernelId::requantize_rows,
                {BlocksFor(longest, kRequantizeRows), n_heads, Size(batch),
                 kRequantizeThreads},
                p);
}

Status CheckRequantize(const Context& context, Stream stream,
                       const RequantizeArgs& args) {
  for (const MoveJob& job : args.jobs) {
    for (const Rows rows : {&kvevict_view::k, &kvevict_view::v}) {
      if (!Changes(job, rows)) continue;
      const kvevict_view& to = job.target();
      KV_RETURN_IF_ERROR(CheckRowsAligned("rows", *job.view, job.view->*rows));
      KV_RETURN_IF_ERROR(CheckRowsAligned("destination", to, to.*rows));
      const RequantizeParams p = ParamsOf(job, rows);
      if (TakesRegroup(p)) {
        KV_RETURN_IF_ERROR(
            Require(context, stream, ReaderOf(context, ModuleId::regroup, p)));
      }
      if (TakesRows(p)) {
        KV_RETURN_IF_ERROR(Require(context, stream,
                                   ReaderOf(context, ModuleId::requantize, p)));
      }
    }
  }
  return Status();
}

Status RunRequantize(const Context& context, Stream stream,
                     const RequantizeArgs& args) {
  for (const Rows rows : {&kvevict_view::k, &kvevict_view::v}) {
    KV_RETURN_IF_ERROR(ForEachBatch(
        args.jobs, RequantizeParams::kMaxPlanes,
        [&](const MoveJob& a, const MoveJob& b) {
          return RequantizeTogether(a, b, rows);
        },
        [&](Jobs<MoveJob> batch) {
          return RunBatch(context, stream, batch, rows);
        }));
  }
  return Status();
}

}  // namespace

const Op<RequantizeArgs> kOp_requantize = {
    RunRequantize, Op<RequantizeArgs>::NoScratch, CheckRequantize};

}  // namespace kvevict::cuda
