// The last query rows of every layer, and their log-sum-exps.
#ifndef KVEVICT_CORE_QUERY_RING_H_
#define KVEVICT_CORE_QUERY_RING_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/context.h"
#include "core/memory_pool.h"
#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// Positions whose rows a layer's ring holds: [begin, end).
struct ObservedRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  // Rows that follow on, or replace known ones, extend what is known; others
  // start afresh. The ring holds `window` rows.
  void Add(uint32_t first, uint32_t n_rows, uint32_t window);
  // Forgets the rows from `position` on.
  void Cut(uint32_t position) {
    end = std::min(end, position);
    begin = std::min(begin, end);
  }
  bool Covers(uint32_t first, uint32_t last) const {
    return begin <= first && end == last;
  }
};

// Which rows are shown.
struct QueryChunk {
  uint32_t n_rows;
  uint32_t first_position;  // as the host counts
  // Not NULL: the device reads the first position there when the work runs.
  const uint32_t* position_address;
};

// Holds rows while it has memory for them. Does nothing where the plan's policy
// observes no queries.
class QueryRing {
 public:
  explicit QueryRing(const Plan& plan);  // which must stay
  ~QueryRing() { End(); }

  // Of the device; 0 where no queries are observed.
  static CheckedSize MemoryBytes(const Plan& plan);

  Status Allocate();
  // In the caller's memory until the end; NULL: in the context's.
  Status Begin(void* memory, size_t memory_bytes);
  void End();
  void Reset();
  // Forgets the rows from `position` on.
  void Cut(uint32_t position);
  // Rows that a graph has observed.
  void Replayed(uint32_t first_position, uint32_t n_rows);

  // Of first_layer and those after it, a plane each.
  Status Observe(Stream stream, uint32_t first_layer,
                 std::span<const kvevict_plane> queries,
                 const QueryChunk& chunk);
  Status ObserveLse(Stream stream, uint32_t layer, const kvevict_plane& row_lse,
                    const QueryChunk& chunk);

  // Whether the rows of a layer's window are there, when `logical` tokens have been
  // seen.
  Status CheckWindow(uint32_t layer, uint32_t logical) const;
  // Those rows.
  QueryRows WindowOf(uint32_t layer, uint32_t logical) const;

 private:
  Status CheckHasMemory() const;
  Status CheckRows(size_t layer, const kvevict_plane& rows, const char* name,
                   kvevict_dtype dtype, uint32_t n_elements,
                   uint32_t n_rows) const;
  // The rows of a chunk that stay, into the rings of neighbouring layers.
  Status Store(Stream stream, std::span<const kvevict_plane> layers,
               const QueryChunk& chunk, uint8_t* rings) const;
  uint32_t window() const { return plan_.policy().obs_window; }
  uint8_t* RowsOf(uint32_t layer) const;
  uint8_t* LseOf(uint32_t layer) const;

  const Plan& plan_;
  Array<ObservedRange> observed_;
  Array<ObservedRange> observed_lse_;  // empty where nobody reads them
  bool has_memory_ = false;
  MemoryPool::Block* borrowed_ = nullptr;
  // [n_layers, obs_window, n_q_heads, k_head_dim] of q_dtype
  uint8_t* rows_ = nullptr;
  uint8_t* lse_ = nullptr;  // f32 [n_layers, obs_window, n_q_heads]
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_QUERY_RING_H_
