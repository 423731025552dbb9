// Stores rows that change on their way to another cache. A work item is some
// tokens of KV heads.
#include "core/kernels/requantize.h"

#include <algorithm>
#include <cstdlib>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/regroup.h"
#include "core/view/view.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kRunRows = 256;
// Longer results are written past the caches.
constexpr uint64_t kLongBytes = uint64_t{4} << 20;

// Heads whose rows alternate in memory are processed together, so that memory
// is read in order.
uint32_t HeadsAtOnce(const MoveJob& job) {
  const auto alternate = [](const kvevict_plane& plane) {
    return std::abs(plane.head_stride_bytes) <
           std::abs(plane.token_stride_bytes);
  };
  if (job.keep.n_lists > 1 || !alternate(job.view->k) ||
      !alternate(job.target().k)) {
    return 1;
  }
  return std::min(kMostHeads, job.view->n_kv_heads);
}

// Whether groups of tokens share the scale and minimum of the new K or V.
bool IsGrouped(const MoveJob& job, kvevict_plane kvevict_view::*rows) {
  const RowChange grouped = GroupedRows(job.target());
  return rows == &kvevict_view::k ? grouped.k : grouped.v;
}

// The number of first list entries whose rows become codes. The others become
// recent rows.
uint32_t CodedOf(const MoveJob& job, uint32_t count) {
  if (job.destination == nullptr) return count;
  const uint32_t first_recent = FirstRecent(job.target());
  return std::min(count, first_recent - std::min(first_recent, job.first_slot));
}

using Rows = kvevict_plane kvevict_view::*;

// Requantizes list entries from `begin` on, for heads from `first` on.
void Requantize(const Context& context, const MoveJob& job, uint32_t first,
                uint32_t begin, Rows rows) {
  const kvevict_plane& to = job.target().*rows;
  RequantizeRowsArgs args;
  args.n_heads = std::min(HeadsAtOnce(job), job.view->n_kv_heads - first);
  for (uint32_t h = 0; h < args.n_heads; ++h) {
    args.from[h] = HeadRows(*job.view, job.view->*rows, first + h);
    args.to[h] = HeadRows(job.target(), to, first + h);
  }
  args.keep = job.keep.ListOf(first);
  args.first_row = job.first_slot;
  args.streams =
      uint64_t{RowBytes(to)} * job.keep.count.most * job.view->n_kv_heads >=
      kLongBytes;
  const uint32_t count = job.keep.CountOf(first);
  const uint32_t end = std::min(begin + kRunRows, count);
  const uint32_t n_coded = CodedOf(job, count);
  args.begin = begin;
  args.end = std::min(end, n_coded);
  if (args.begin < args.end && !IsGrouped(job, rows)) {
    RequantizeRows(context.simd(), args);
  }
  args.begin = std::max(begin, n_coded);
  args.end = end;
  if (args.begin >= args.end) return;
  args.first_row -= args.to[0].recent.first;  // modulo 2^32
  for (uint32_t h = 0; h < args.n_heads; ++h) {
    args.to[h] = args.to[h].Recent();
  }
  RequantizeRows(context.simd(), args);
}

// Requantizes a head's written rows of the destination from `begin` on, in
// whole groups of `n_rows`.
void Regroup(const Context& context, const MoveJob& job, uint32_t head,
             uint64_t begin, uint64_t n_rows, Rows rows) {
  RegroupRowsArgs args;
  args.from = HeadRows(*job.view, job.view->*rows, head);
  args.to = HeadRows(job.target(), job.target().*rows, head);
  args.in_place = job.destination == nullptr;
  args.keep = job.keep.ListOf(head);
  args.first_row = job.first_slot;
  const uint64_t end = job.first_slot + CodedOf(job, job.keep.CountOf(head));
  args.begin = static_cast<uint32_t>(std::max<uint64_t>(begin, job.first_slot));
  args.end = static_cast<uint32_t>(std::min(begin + n_rows, end));
  if (args.begin < args.end) RegroupRows(context.simd(), args);
}

// In place, a head's groups must run one after the other.
[[maybe_unused]] void RegroupAll(const Context& context, const MoveJob& job,
                                 Rows rows) {
  const uint32_t n_heads = job.view->n_kv_heads;
  const uint64_t group =
      FindNumbers(job.target(), job.target().*rows, false)->group_tokens;
  const uint64_t first = job.first_slot / group * group;
  const uint64_t n_all = job.first_slot - first + job.keep.count.most;
  const uint64_t n_rows = job.destination == nullptr
                              ? n_all
                              : (kRunRows + group - 1) / group * group;
  const uint64_t n_runs = n_all == 0 ? 0 : (n_all + n_rows - 1) / n_rows;
  context.ParallelFor(static_cast<uint32_t>(n_heads * n_runs),
                      [&](uint32_t item, uint32_t) {
                        Regroup(context, job, item % n_heads,
                                first + item / n_heads * n_rows, n_rows, rows);
                      });
}

// Requantizes rows that have a scale of their own, and recent rows.
void RequantizeAll(const Context& context, const MoveJob& job, Rows rows) {
  const uint32_t n_heads = HeadsAtOnce(job);
  const uint32_t n_groups = (job.view->n_kv_heads + n_heads - 1) / n_heads;
  const uint32_t n_runs = (job.keep.count.most + kRunRows - 1) / kRunRows;
  context.ParallelFor(n_groups * n_runs, [&](uint32_t item, uint32_t) {
    Requantize(context, job, item % n_groups * n_heads,
               item / n_groups * kRunRows, rows);
  });
}

Status RunRequantize(const Context& context, Stream,
                     const RequantizeArgs& args) {
  for (const MoveJob& job : args.jobs) {
    for (const Rows rows : {&kvevict_view::k, &kvevict_view::v}) {
      if (rows == &kvevict_view::k ? !job.change.k : !job.change.v) continue;
      if constexpr (kHasQuantized) {
        if (IsGrouped(job, rows)) RegroupAll(context, job, rows);
      }
      if (job.destination != nullptr) RequantizeAll(context, job, rows);
    }
  }
  return Status();
}

}  // namespace

const Op<RequantizeArgs> kOp_requantize = {RunRequantize};

}  // namespace kvevict::cpu
