// Rows that change on their way to another cache: an item is some tokens of a KV head.
#include "core/kernels/requantize.h"

#include <algorithm>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/view.h"

namespace kvevict::cpu {
namespace {

constexpr uint32_t kRun = 256;  // rows

void Requantize(const Context& context, const MoveJob& job, uint32_t head,
                uint32_t begin, kvevict_plane kvevict_view::*rows) {
  RequantizeRowsArgs args;
  args.from = HeadRows(*job.view, job.view->*rows, head);
  args.to = HeadRows(job.target(), job.target().*rows, head);
  args.keep = job.keep.ListOf(head);
  args.begin = begin;
  args.end = std::min(begin + kRun, job.keep.CountOf(head));
  args.first_row = job.first_slot;
  RequantizeRows(context.simd(), args);
}

}  // namespace

Status Run_requantize(const Context& context, Stream,
                      const RequantizeArgs& args) {
  for (const MoveJob& job : args.jobs) {
    if (!job.change.any()) continue;
    const uint32_t n_heads = job.view->n_kv_heads;
    const uint32_t n_runs = (job.keep.count.most + kRun - 1) / kRun;
    context.ParallelFor(n_heads * n_runs, [&](uint32_t item, uint32_t) {
      const uint32_t head = item % n_heads;
      const uint32_t begin = item / n_heads * kRun;
      if (job.change.k) {
        Requantize(context, job, head, begin, &kvevict_view::k);
      }
      if (job.change.v) {
        Requantize(context, job, head, begin, &kvevict_view::v);
      }
    });
  }
  return Status();
}

}  // namespace kvevict::cpu
