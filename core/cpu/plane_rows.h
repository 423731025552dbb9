// Work items that are a layer and head, and the rows of a plane that an item
// moves.
#ifndef KVEVICT_CORE_CPU_PLANE_ROWS_H_
#define KVEVICT_CORE_CPU_PLANE_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "core/backend.h"
#include "core/context.h"
#include "core/kernels/moved_rows.h"
#include "core/status.h"

namespace kvevict::cpu {

// Calls body(job, head), on the workers, for every KV head of every job.
template <typename Body>
void ForEachHeadOf(const Context& context, Jobs<MoveJob> jobs,
                   const Body& body) {
  uint32_t n_heads = 0;
  for (const MoveJob& job : jobs) {
    n_heads = std::max(n_heads, job.view->n_kv_heads);
  }
  context.ParallelFor(static_cast<uint32_t>(jobs.size() * n_heads),
                      [&](uint32_t item, uint32_t) {
                        const MoveJob& job = jobs[item / n_heads];
                        const uint32_t head = item % n_heads;
                        if (head < job.view->n_kv_heads) body(job, head);
                      });
}

// The rows that a head's item moves in a layer with n_lists keep lists. The
// rows of adjacent heads with one list move as one: row_bytes is 0 if another
// head's item moves them.
MovedRows RowsOf(const kvevict_view& view, const kvevict_plane& plane,
                 uint32_t head, uint32_t n_lists);

// The same for a plane and the one to which its rows are copied, in pieces that
// both have.
struct RowPair {
  MovedRows from, to;
};
RowPair RowsOf(const kvevict_view& view, const kvevict_plane& plane,
               const kvevict_view& to_view, const kvevict_plane& to_plane,
               uint32_t head, uint32_t n_lists);

}  // namespace kvevict::cpu

#endif  // KVEVICT_CORE_CPU_PLANE_ROWS_H_
