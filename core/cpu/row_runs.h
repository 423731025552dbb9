// Work items that are rows of KV heads, some tokens at a time.
#ifndef KVEVICT_CORE_CPU_ROW_RUNS_H_
#define KVEVICT_CORE_CPU_ROW_RUNS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/row_source.h"
#include "core/view/view.h"

namespace kvevict::cpu {

// The tokens in a run of one head. In a run of several adjacent heads each has
// its part of them, in whole groups of kRowsInStep rows.
inline constexpr uint32_t kRowRun = 1024;
inline constexpr uint32_t kMostSideBySide = 64;
inline constexpr uint32_t kRowsInStep = 4;
inline constexpr uint32_t kMostRowsOfRun =
    kRowRun + kRowsInStep * kMostSideBySide;

// Consecutive tokens of one KV head, or of all KV heads if their rows
// alternate.
struct RowRun {
  RowSource rows;  // of the first head
  SideBySide heads;
  uint32_t head = 0;
  uint32_t first = 0;
  uint32_t n = 0;
};

// Whether the rows of heads alternate in memory and all heads have equally
// many.
inline bool LieSideBySide(const kvevict_view& view, const kvevict_plane& plane,
                          const ListCounts& tokens) {
  return view.n_kv_heads <= kMostSideBySide && tokens.each == nullptr &&
         view.block_table_head_stride == 0 &&
         std::abs(plane.head_stride_bytes) < std::abs(plane.token_stride_bytes);
}

// Calls body(job, run, worker) for the rows of `plane` of all tokens of the
// jobs. Results of adjacent heads are as many elements apart as the longest
// head of the job has tokens.
template <typename Job, typename Body>
void ForEachRowRun(const Context& context, Jobs<Job> jobs, uint32_t n_heads,
                   kvevict_plane kvevict_view::*plane, const Body& body) {
  uint32_t most = 0;
  for (const Job& job : jobs) most = std::max(most, Scored(job).tokens.most);
  const uint32_t n_runs = (most + kRowRun - 1) / kRowRun;
  context.ParallelFor(
      static_cast<uint32_t>(jobs.size() * n_runs * n_heads),
      [&](uint32_t item, uint32_t worker) {
        const Job& job = jobs[item / (n_runs * n_heads)];
        const ListCounts& tokens = Scored(job).tokens;
        const kvevict_view& view = *Scored(job).view;
        const kvevict_plane& rows = view.*plane;
        RowRun run;
        const uint32_t part = item % n_heads;
        run.first = item / n_heads % n_runs * kRowRun;
        uint32_t end = std::min(run.first + kRowRun, tokens.most);
        if (LieSideBySide(view, rows, tokens)) {
          // A part of the tokens of every head.
          const uint32_t step = n_heads * kRowsInStep;
          const uint32_t n = (kRowRun + step - 1) / step * kRowsInStep;
          run.heads = {n_heads, rows.head_stride_bytes, tokens.most};
          run.first += part * n;
          end = std::min(end, run.first + n);
        } else {
          run.head = part;
          end = std::min(end, tokens.Of(part));
        }
        if (run.first >= end) return;
        run.rows = HeadRows(view, rows, run.head);
        run.n = end - run.first;
        body(job, run, worker);
      });
}

// The same for an operation on like layers.
template <typename Args, typename Body>
void ForEachRowRun(const Context& context, const Args& args,
                   kvevict_plane kvevict_view::*plane, const Body& body) {
  ForEachRowRun(context, args.jobs, args.layer.n_kv_heads, plane, body);
}

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_ROW_RUNS_H_
