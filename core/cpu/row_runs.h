// Rows of all KV heads, some tokens of a head at a time.
#ifndef KVEVICT_CORE_CPU_ROW_RUNS_H_
#define KVEVICT_CORE_CPU_ROW_RUNS_H_

#include <algorithm>
#include <cstdint>

#include "core/context.h"
#include "core/cpu/cpu.h"
#include "core/kernels/row_source.h"
#include "core/view.h"

namespace kvevict::cpu {

// Consecutive tokens of one KV head, at most so many.
inline constexpr uint32_t kRowRun = 1024;
struct RowRun {
  RowSource rows;  // of the head
  uint32_t head = 0;
  uint32_t first = 0;
  uint32_t n = 0;
};

// Calls body(job, run, worker) for the rows of `plane` of all tokens of the jobs.
template <typename Job, typename Body>
void ForEachRowRun(const Context& context, Jobs<Job> jobs, uint32_t n_heads,
                   kvevict_plane kvevict_view::*plane, const Body& body) {
  uint32_t most = 0;
  for (const Job& job : jobs) most = std::max(most, job.tokens.most);
  const uint32_t n_runs = (most + kRowRun - 1) / kRowRun;
  context.ParallelFor(
      static_cast<uint32_t>(jobs.size() * n_runs * n_heads),
      [&](uint32_t item, uint32_t worker) {
        const Job& job = jobs[item / (n_runs * n_heads)];
        const uint32_t head = item % n_heads;
        const uint32_t first = item / n_heads % n_runs * kRowRun;
        const uint32_t n_tokens = job.tokens.Of(head);
        if (first >= n_tokens) return;
        body(job,
             RowRun{HeadRows(*job.view, (*job.view).*plane, head), head, first,
                    std::min(kRowRun, n_tokens - first)},
             worker);
      });
}

// Of an operation on layers alike.
template <typename Args, typename Body>
void ForEachRowRun(const Context& context, const Args& args,
                   kvevict_plane kvevict_view::*plane, const Body& body) {
  ForEachRowRun(context, args.jobs, args.layer.n_kv_heads, plane, body);
}

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_ROW_RUNS_H_
