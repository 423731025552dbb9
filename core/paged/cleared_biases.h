// Makes the biases of new rows 0.
#ifndef KVEVICT_CORE_PAGED_CLEARED_BIASES_H_
#define KVEVICT_CORE_PAGED_CLEARED_BIASES_H_

#include <cstdint>

#include "core/ops/move.h"
#include "core/paged/paged_cache.h"
#include "core/status.h"

namespace kvevict {

// Rows of several layers and heads, which one operation clears. It copies a 0 to
// each of them, so it needs no kernel of its own.
class ClearedBiases {
 public:
  ClearedBiases(const PagedCache& cache, Stream stream);

  // Adds slots [first, first + n) of a KV head, if the head exists and the view
  // has biases.
  Status Add(const kvevict_view& view, uint32_t head, uint32_t first,
             uint32_t n);
  // Queues what was added.
  Status Run();

 private:
  static constexpr uint32_t kMostJobs = 64;
  struct Job {
    kvevict_view to;
    MoveJob move;
  };

  bool Widens(const kvevict_view& view, uint64_t data, uint32_t first,
              uint32_t n) const;

  const PagedCache& cache_;
  const Stream stream_;
  kvevict_view zeros_;  // every head and slot is the same 0
  uint32_t n_jobs_ = 0;
  Job jobs_[kMostJobs];
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_PAGED_CLEARED_BIASES_H_
