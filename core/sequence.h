// What one request carries between steps.
#ifndef KVEVICT_CORE_SEQUENCE_H_
#define KVEVICT_CORE_SEQUENCE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/plan.h"
#include "core/status.h"

namespace kvevict {

// The slots of one layer: `n_kept` survivors of the last eviction, whose
// positions are listed, then tokens appended since, whose positions count up.
struct LayerSlots {
  uint32_t stored = 0;         // slots in use
  uint32_t n_kept = 0;         // of them listed
  uint32_t tail_position = 0;  // position of slot n_kept
  size_t kept_offset = 0;      // of the lists, [n_lists, n_kept], in kept()
};

// Positions whose query rows a layer's ring holds: [begin, end).
struct CapturedRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

class Sequence final : public SlotMap {
 public:
  static Status Create(const Plan& plan, Sequence** out);

  explicit Sequence(const Plan& plan);
  void Destroy();

  const Plan& plan() const { return *plan_; }
  uint32_t logical_length() const { return logical_length_; }
  const LayerSlots& slots(uint32_t layer) const { return layers_[layer]; }
  uint32_t LongestLayer() const;

  void Reset();
  Status Append(uint32_t n_tokens);
  Status Capture(uint32_t layer, const kvevict_plane& queries, uint32_t n_rows,
                 uint32_t first_position);

  // Lists per layer are told apart by `list`; KV heads that share one have list
  // 0.
  uint32_t ListOf(uint32_t kv_head) const {
    return plan().n_lists() == 1 ? 0 : kv_head;
  }
  int32_t PositionOf(uint32_t layer, uint32_t list, uint32_t slot) const;
  int64_t SlotOf(uint32_t layer, uint32_t list,
                 int32_t position) const override;

  // Whether the ring of a layer holds the last obs_window rows.
  Status CheckWindow(uint32_t layer) const;
  // The layer's last obs_window rows, by way of a table of obs_window places.
  RowSource Window(uint32_t layer, const int32_t* table) const;
  int64_t query_head_stride() const;
  void FillWindowTable(std::span<int32_t> table) const;

  // Records an eviction: a job per layer, in order. Jobs with n_keep ==
  // n_tokens lost nothing.
  void Commit(std::span<const LayerJob> jobs);

 private:
  Status Allocate();
  uint64_t RingRowBytes() const;
  uint8_t* RingRow(uint32_t layer, uint32_t position) const;

  const Retained<Plan> plan_;
  uint32_t logical_length_ = 0;
  Array<LayerSlots> layers_;
  Array<CapturedRange> captured_;
  Array<uint8_t>
      ring_;  // [n_layers, obs_window, n_q_heads, k_head_dim] of q_dtype
  // Positions of survivors. An eviction reads one array and writes the other.
  Array<int32_t> kept_a_;
  Array<int32_t> kept_b_;
  const int32_t* kept_ = nullptr;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_H_
