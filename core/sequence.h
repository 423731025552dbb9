// What one request carries between steps.
#ifndef KVEVICT_CORE_SEQUENCE_H_
#define KVEVICT_CORE_SEQUENCE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/device_array.h"
#include "core/layer_eviction.h"
#include "core/overlap.h"
#include "core/plan.h"
#include "core/query_ring.h"
#include "core/slot_table.h"
#include "core/status.h"

namespace kvevict {

// Where an eviction selects on the host while its cache is on the device.
struct HostCopy {
  float* scores;              // as many as the workspace holds
  int32_t* keep;              // keep_capacity()
  std::span<SelectJob> jobs;  // [n_layers]
};

class Sequence {
 public:
  static Status Create(const Plan& plan, Sequence** out);

  explicit Sequence(const Plan& plan);
  void Destroy();

  const Plan& plan() const { return *plan_; }
  Stream stream() const { return stream_; }
  void set_stream(Stream stream) { stream_ = stream; }
  uint32_t logical_length() const { return slots_.logical_length(); }
  const SlotTable& slots() const { return slots_; }
  SlotTable& slots() { return slots_; }

  Status Reset();
  Status BeginObserving(void* memory, size_t memory_bytes) {
    return ring_.Begin(memory, memory_bytes);
  }
  void EndObserving() { ring_.End(); }
  Status Append(uint32_t n_tokens);
  Status Replayed(uint32_t n_tokens);
  Status Trim(uint32_t n_tokens);
  // Of first_layer and those after it, a plane each.
  Status Observe(uint32_t first_layer, std::span<const kvevict_plane> queries,
                 uint32_t n_rows, uint32_t first_position);
  Status ObserveLse(uint32_t layer, const kvevict_plane& row_lse,
                    uint32_t n_rows, uint32_t first_position);

  // Lists per layer are told apart by `list`; KV heads that share one have list
  // 0.
  uint32_t ListOf(uint32_t kv_head) const {
    return plan().n_lists() == 1 ? 0 : kv_head;
  }
  uint32_t Stored(uint32_t layer, uint32_t kv_head) const {
    return slots_.HostTokens(layer).Of(ListOf(kv_head));
  }
  // Of a layer, in host memory; waits for the device where that has evicted since.
  Status HostPositions(uint32_t layer, SlotPositions* out) const {
    return slots_.HostPositions(stream_, layer, out);
  }

  // Whether the query ring holds what scoring a layer needs, and its window is
  // whole.
  Status CheckWindow(uint32_t layer) const;
  QueryRows WindowQueries(uint32_t layer) const {
    return ring_.WindowOf(layer, logical_length());
  }

  // Scratch of an eviction: copies of the caller's views, and what becomes of the
  // layers.
  std::span<kvevict_view> views() const;       // [n_layers]
  std::span<LayerCache> caches() const;        // [n_layers]
  std::span<LayerEviction> evictions() const;  // [n_layers]
  std::span<LayerEviction> active() const;     // [n_layers]
  std::span<uint32_t> budgets() const;         // [n_layers]
  bool selects_on_host() const { return host_scores_.size() > 0; }
  HostCopy host_copy() const;

 private:
  Status Allocate();
  // KVEVICT_POSITION_NEXT becomes the position that it stands for.
  QueryChunk ChunkOf(uint32_t n_rows, uint32_t first_position) const;

  const Retained<Plan> plan_;
  Stream stream_ = nullptr;
  SlotTable slots_;
  QueryRing ring_;
  Array<kvevict_view> views_;  // [n_layers]
  Array<LayerCache> caches_;
  Array<LayerEviction> evictions_;  // [2, n_layers]
  Array<SelectJob> host_jobs_;
  Array<uint32_t> budgets_;
  Array<float> host_scores_;
  Array<int32_t> host_keep_;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_H_
