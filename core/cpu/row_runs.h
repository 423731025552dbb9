// Rows of all KV heads, in the order in which they mostly lie in memory.
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
inline constexpr uint32_t kRowRun = 16;
struct RowRun {
  RowSource rows;  // of the head
  uint32_t head = 0;
  uint32_t first = 0;
  uint32_t n = 0;
};

// Asks for rows [first, end) of a head before they are read.
inline void AskForRows(const RowSource& rows, uint32_t head_dim, uint32_t first,
                       uint32_t end) {
  const int64_t bytes = ElementBytes(rows.dtype);
  // Elements far apart are on lines of their own, too many to ask for.
  if (rows.element_stride != bytes) return;
  for (uint32_t r = first; r < end; ++r) {
    const uint8_t* const row = rows.Row(r);
    // Into L2: rows a power of two apart share few sets of L1.
    for (int64_t i = 0; i < bytes * head_dim; i += 64) {
      __builtin_prefetch(row + i, 0, 2);
    }
  }
}

// Calls body(job, run, worker) for all tokens of the jobs, whose rows of `plane` have
// head_dim elements. A run is so short that heads that lie side by side are read side
// by side: head after head, memory is read several times slower.
template <typename Args, typename Body>
void ForEachRowRun(const Context& context, const Args& args,
                   kvevict_plane kvevict_view::*plane, uint32_t head_dim,
                   const Body& body) {
  constexpr uint32_t kAhead = 2 * kRowRun;
  constexpr uint32_t kPiece = 16 * kRowRun;  // of a worker
  uint32_t most = 0;
  for (size_t j = 0; j < args.jobs.size(); ++j) {
    most = std::max(most, args.jobs[j].tokens.most);
  }
  const uint32_t n_pieces = (most + kPiece - 1) / kPiece;
  context.ParallelFor(
      static_cast<uint32_t>(args.jobs.size() * n_pieces),
      [&](uint32_t item, uint32_t worker) {
        const auto& job = args.jobs[item / n_pieces];
        const uint32_t begin = item % n_pieces * kPiece;
        const uint32_t end = std::min(begin + kPiece, job.tokens.most);
        for (uint32_t first = begin; first < end; first += kRowRun) {
          for (uint32_t head = 0; head < args.layer.n_kv_heads; ++head) {
            const uint32_t n_tokens = std::min(end, job.tokens.Of(head));
            if (first >= n_tokens) continue;
            const RowSource rows =
                HeadRows(*job.view, (*job.view).*plane, head);
            AskForRows(rows, head_dim, std::min(n_tokens, first + kAhead),
                       std::min(n_tokens, first + kAhead + kRowRun));
            body(job,
                 RowRun{rows, head, first, std::min(kRowRun, n_tokens - first)},
                 worker);
          }
        }
      });
}

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_ROW_RUNS_H_
