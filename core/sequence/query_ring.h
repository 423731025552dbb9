// The last query rows of every layer, and their log-sum-exps.
#ifndef KVEVICT_CORE_SEQUENCE_QUERY_RING_H_
#define KVEVICT_CORE_SEQUENCE_QUERY_RING_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/context.h"
#include "core/memory/lent_memory.h"
#include "core/plan/plan.h"
#include "core/signals/signal_inputs.h"
#include "core/status.h"

namespace kvevict {

// Positions whose rows a layer's ring holds: [begin, end).
struct ObservedRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  // Whether rows were pushed out since they started afresh.
  bool pushed_out = false;

  // Rows that follow on, or replace known ones, extend what is known; others
  // start afresh.
  void Add(uint32_t first, uint32_t n_rows, uint32_t ring_rows);
  // Forgets the rows from `position` on.
  void Cut(uint32_t position) {
    end = std::min(end, position);
    begin = std::min(begin, end);
  }
  bool Covers(uint32_t first, uint32_t last) const {
    return begin <= first && end == last;
  }
  bool empty() const { return begin == end; }
};

// Which rows are shown.
struct QueryChunk {
  uint32_t n_rows;
  uint32_t first_position;  // as the host counts
  // Not NULL: the device reads the first position there when the work runs.
  const uint32_t* position_address;
};

Status CheckPositions(const QueryChunk& chunk);

// Holds rows while it has memory for them. Does nothing where the plan's policy
// observes no queries.
class QueryRing {
 public:
  explicit QueryRing(const Plan& plan);  // which must stay

  Status Allocate();
  // See LentMemory.
  Status Begin(void* memory, size_t memory_bytes);
  void End();
  bool has_memory() const { return memory_.is_there(); }
  // Whether it takes another one's rows as they are, of the same layers.
  bool IsLike(const QueryRing& other) const {
    return plan_.ObservesQueries() && other.plan_.ObservesQueries() &&
           window() == other.window() && ring_rows() == other.ring_rows();
  }
  // What another such ring has observed; both have memory, or neither.
  Status CopyFrom(Stream stream, const QueryRing& other);
  void Reset();
  // Forgets the rows from `position` on.
  void Cut(uint32_t position);
  // Forgets a layer's log-sum-exps: keys that they cover are gone.
  void ForgetLse(uint32_t layer);
  void Forget(uint32_t layer);
  // Rows that a graph has observed.
  void Replayed(uint32_t first_position, uint32_t n_rows);

  // Rows of ascending layers.
  Status CheckObserve(std::span<const LayerInputs> layers,
                      const QueryChunk& chunk) const;
  Status Observe(Stream stream, std::span<const LayerInputs> layers,
                 const QueryChunk& chunk);

  // Whether the rows of a layer's window are there, when `logical` tokens have been
  // seen.
  Status CheckWindow(uint32_t layer, uint32_t logical) const;
  // Those rows.
  QueryRows WindowOf(uint32_t layer, uint32_t logical) const;

 private:
  using Rows = const kvevict_plane* LayerInputs::*;

  Status CheckRows(const LayerInputs& inputs, uint32_t n_rows) const;
  Status Store(Stream stream, std::span<const LayerInputs> layers, Rows rows,
               const QueryChunk& chunk) const;
  Status StoreAll(Stream stream, std::span<const LayerInputs> layers, Rows rows,
                  const QueryChunk& chunk) const;
  uint32_t window() const { return plan_.policy().window.count; }
  uint32_t ring_rows() const { return plan_.QueryRingRows(); }
  uint8_t* RowsOf(uint32_t layer) const;
  uint8_t* LseOf(uint32_t layer) const;

  const Plan& plan_;
  Array<ObservedRange> observed_;
  Array<ObservedRange> observed_lse_;  // empty where nobody reads them
  // Each layer has [ring_rows, n_q_heads, k_head_dim] of q_dtype. Log-sum-exps, f32
  // [ring_rows, n_q_heads], follow where they are read.
  LentMemory memory_;
  uint8_t* lse_ = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_QUERY_RING_H_
