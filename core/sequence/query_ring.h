// The last query rows of every layer and their log-sum-exps.
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

  // True if rows have been overwritten since the range last started afresh.
  bool pushed_out = false;

  // Adds rows. Rows that follow or replace known ones extend the range; others
  // start afresh.
  void Add(uint32_t first, uint32_t n_rows, uint32_t ring_rows);
  // Forgets the rows from `position` on.
  void Cut(uint32_t position) {
    end = std::min(end, position);
    begin = std::min(begin, end);
  }
  // Forgets the rows of [first, last) and those before.
  void Forget(uint32_t first, uint32_t last) {
    if (end > first) begin = std::max(begin, std::min(last, end));
  }
  bool Covers(uint32_t first, uint32_t last) const {
    return begin <= first && end == last;
  }
  bool empty() const { return begin == end; }
};

// The rows of a call.
struct QueryChunk {
  uint32_t n_rows;
  uint32_t first_position;  // as the host knows it
  // If not NULL, the device reads the first position from here when the work
  // runs.
  const uint32_t* position_address;
};

Status CheckPositions(const QueryChunk& chunk);

// Holds query rows while it has memory for them. Does nothing if the plan's
// policy observes no queries.
class QueryRing {
 public:
  explicit QueryRing(const Plan& plan);  // must outlive this

  Status Allocate();
  // See LentMemory.
  Status Begin(void* memory, size_t memory_bytes);
  void End();
  bool has_memory() const { return memory_.is_there(); }
  // Whether it can copy the rows of another ring of the same layers.
  bool IsLike(const QueryRing& other) const {
    return plan_.ObservesQueries() && other.plan_.ObservesQueries() &&
           window() == other.window() && ring_rows() == other.ring_rows();
  }
  // Copies what a like ring has observed. Both have memory, or neither has.
  Status CopyFrom(Stream stream, const QueryRing& other);
  void Reset();
  // Forgets the rows from `position` on.
  void Cut(uint32_t position);
  // Forgets the rows of a span in the middle, and those before.
  void ForgetSpan(uint32_t first, uint32_t end);
  // Forgets a layer's log-sum-exps, since keys that they cover are gone.
  void ForgetLse(uint32_t layer);
  void Forget(uint32_t layer);
  // Records rows that a graph has observed.
  void Replayed(uint32_t first_position, uint32_t n_rows);

  // `layers` ascend.
  Status CheckObserve(std::span<const LayerInputs> layers,
                      const QueryChunk& chunk) const;
  Status Observe(Stream stream, std::span<const LayerInputs> layers,
                 const QueryChunk& chunk);

  // Checks that the rows of a layer's window are there after `logical` tokens.
  Status CheckWindow(uint32_t layer, uint32_t logical) const;
  // The rows of that window.
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
  Array<ObservedRange> observed_lse_;  // empty if nobody reads them
  // Each layer has [ring_rows, n_q_heads, k_head_dim] of q_dtype. If
  // log-sum-exps are read they follow as f32 [ring_rows, n_q_heads].
  LentMemory memory_;
  uint8_t* lse_ = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_QUERY_RING_H_
