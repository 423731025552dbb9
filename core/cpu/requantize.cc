// Rows that change on their way to another cache: an item is some tokens of KV heads.
#include "core/kernels/requantize.h"

#include <algorithm>
#include <cstdlib>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kRun = 256;  // rows
// What is longer passes the caches by.
constexpr uint64_t kLongBytes = uint64_t{4} << 20;

// Heads whose rows alternate in memory go together, so that it is read as it lies.
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

// Of heads from `first` on, list entries from `begin` on.
void Requantize(const Context& context, const MoveJob& job, uint32_t first,
                uint32_t begin, kvevict_plane kvevict_view::*rows) {
  const kvevict_plane& to = job.target().*rows;
  RequantizeRowsArgs args;
  args.n_heads = std::min(HeadsAtOnce(job), job.view->n_kv_heads - first);
  for (uint32_t h = 0; h < args.n_heads; ++h) {
    args.from[h] = HeadRows(*job.view, job.view->*rows, first + h);
    args.to[h] = HeadRows(job.target(), to, first + h);
  }
  args.keep = job.keep.ListOf(first);
  args.begin = begin;
  args.end = std::min(begin + kRun, job.keep.CountOf(first));
  args.first_row = job.first_slot;
  args.streams =
      uint64_t{RowBytes(to)} * job.keep.count.most * job.view->n_kv_heads >=
      kLongBytes;
  RequantizeRows(context.simd(), args);
}

}  // namespace

Status Run_requantize(const Context& context, Stream,
                      const RequantizeArgs& args) {
  for (const MoveJob& job : args.jobs) {
    if (!job.change.any()) continue;
    const uint32_t n_heads = HeadsAtOnce(job);
    const uint32_t n_groups = (job.view->n_kv_heads + n_heads - 1) / n_heads;
    const uint32_t n_runs = (job.keep.count.most + kRun - 1) / kRun;
    context.ParallelFor(n_groups * n_runs, [&](uint32_t item, uint32_t) {
      const uint32_t first = item % n_groups * n_heads;
      const uint32_t begin = item / n_groups * kRun;
      if (job.change.k) {
        Requantize(context, job, first, begin, &kvevict_view::k);
      }
      if (job.change.v) {
        Requantize(context, job, first, begin, &kvevict_view::v);
      }
    });
  }
  return Status();
}

}  // namespace kvevict::cpu
