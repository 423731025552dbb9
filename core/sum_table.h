// The attention that every slot has got, added up step by step: a row of f32 for each
// KV head, query head or layer, which moves with the slots.
#ifndef KVEVICT_CORE_SUM_TABLE_H_
#define KVEVICT_CORE_SUM_TABLE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/evict/layer_eviction.h"
#include "core/lent_memory.h"
#include "core/plan.h"
#include "core/query_ring.h"
#include "core/signal_inputs.h"
#include "core/slot_table.h"
#include "core/status.h"

namespace kvevict {

// Holds sums while it has memory for them. Does nothing where the plan's policy scores
// by others.
class SumTable {
 public:
  explicit SumTable(const Plan& plan);  // which must stay

  Status Allocate();
  // See LentMemory.
  Status Begin(void* memory, size_t memory_bytes);
  void End();
  bool has_memory() const { return memory_.is_there(); }
  // Whether it takes another one's sums as they are, of the same layers.
  bool IsLike(const SumTable& other) const;
  // What another such table has; both have memory, or neither.
  Status CopyFrom(Stream stream, const SumTable& other);
  // Forgets all.
  void Reset();
  // Sums go up to `position` at most; what later rows have added stays.
  void Cut(uint32_t position);
  // Rows that a graph has added.
  void Replayed(uint32_t first_position, uint32_t n_rows);

  // Adds what layers are given of a chunk; ascending layers.
  Status CheckAdd(const SlotTable& slots, std::span<const LayerInputs> layers,
                  const QueryChunk& chunk) const;
  Status Add(Stream stream, const SlotTable& slots,
             std::span<const LayerInputs> layers, const QueryChunk& chunk);

  // Whether a layer has any.
  bool Has(uint32_t layer) const {
    return observed_.size() > 0 && !observed_[layer].empty();
  }
  // Whether it has had some since before `position`.
  bool HasFrom(uint32_t layer, uint32_t position) const {
    return Has(layer) && observed_[layer].begin < position;
  }
  // Whether there are sums of none but of `logical` tokens.
  Status CheckNotAhead(uint32_t logical) const;
  // Whether a layer's sums are of all queries up to the last of `logical`.
  Status CheckUpTo(uint32_t layer, uint32_t logical) const;
  // Of how many queries they are.
  uint32_t CountOf(uint32_t layer) const {
    return observed_[layer].end - observed_[layer].begin;
  }
  // A layer's, as a caller would give them; there is memory.
  kvevict_plane PlaneOf(uint32_t layer) const;
  // The same as rows of a cache: those of a KV head are one row of several elements.
  kvevict_view ViewOf(uint32_t layer) const;

  // With the rows of layers that lose slots, before that is recorded. Forgets sums that
  // do not go up to the last token.
  Status Move(Stream stream, const SlotTable& slots,
              std::span<const LayerOutcome> layers, std::span<uint8_t> scratch);
  void Forget(uint32_t layer) {
    if (observed_.size() > 0) observed_[layer] = ObservedRange();
  }

 private:
  Status FindJob(const SlotTable& slots, const LayerInputs& inputs,
                 const QueryChunk& chunk, AddSumsJob* out) const;
  float* RowsOf(uint32_t layer) const;

  const Plan& plan_;
  Array<ObservedRange>
      observed_;       // positions of the queries of each layer's sums
  LentMemory memory_;  // of each layer [Plan::SumRowsOf(), max_tokens]
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SUM_TABLE_H_
