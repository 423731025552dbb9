// The attention that every slot has got, added up step by step: a row of f32 for each
// KV head, query head or layer, which moves with the slots. Where the policy wants the
// sum of the last calls alone, a row of each of them, until the layer's next eviction.
#ifndef KVEVICT_CORE_SEQUENCE_SUM_TABLE_H_
#define KVEVICT_CORE_SEQUENCE_SUM_TABLE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/evict/layer_eviction.h"
#include "core/memory/device_array.h"
#include "core/memory/lent_memory.h"
#include "core/plan/plan.h"
#include "core/sequence/query_ring.h"
#include "core/sequence/slot_table.h"
#include "core/signals/signal_inputs.h"
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
  // Sums go up to `position` at most; what later rows have added stays, but for single
  // calls.
  Status Cut(Stream stream, uint32_t position);
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
  // Whether there are sums of none but of `logical` tokens.
  Status CheckNotAhead(uint32_t logical) const;
  // Whether a layer's sums are of all queries up to the last of `logical`.
  Status CheckUpTo(uint32_t layer, uint32_t logical) const;
  // Of how many queries they are.
  uint32_t CountOf(uint32_t layer) const {
    return observed_[layer].end - observed_[layer].begin;
  }
  // Whether sums are those of single calls.
  bool KeepsCalls() const {
    return plan_.ObservesSums() && plan_.policy().sum_last > 0;
  }
  // Adds up the calls of layers, for PlaneOf().
  Status SumCalls(Stream stream, const SlotTable& slots,
                  Jobs<uint32_t> layers) const;
  // A layer's, as a caller would give them; there is memory.
  kvevict_plane PlaneOf(uint32_t layer) const;
  // The same as rows of a cache: those of a KV head are one row of several elements.
  kvevict_view ViewOf(uint32_t layer) const;

  // With the rows of layers that lose slots, before that is recorded. Forgets sums that
  // do not go up to the last token, and single calls, unless they are saved: those count
  // no more, but move.
  Status Move(Stream stream, const SlotTable& slots,
              std::span<const LayerOutcome> layers, bool are_saved,
              std::span<uint8_t> scratch);

  // Of a layer that gets slots back, which it lost when there were n_tokens: whether
  // that changes sums.
  bool ComeBack(uint32_t layer, uint32_t n_tokens) const {
    return KeepsCalls() ? calls_[layer].n > 0
                        : Has(layer) && observed_[layer].begin < n_tokens;
  }
  // The rows of single calls, by a job for all of them: those from before get what was
  // saved of them, later ones, which could not see these slots, zeros.
  Status PutBackCalls(Stream stream, uint32_t layer, const MoveJob& job) const;
  // Behind that.
  void TakeBack(uint32_t layer, uint32_t n_tokens);

 private:
  // Of a layer, in a ring of rows: the last `n` before its next one are there.
  struct Calls {
    uint32_t n = 0;
    uint32_t n_counted = 0;  // the last of them; others came before an eviction
    uint32_t n_ever = 0;     // but for those taken back
    bool is_shown = false;   // by graphs too
    ObservedRange before;    // of those that count no more
  };

  Status FindJob(const SlotTable& slots, const LayerInputs& inputs,
                 const QueryChunk& chunk, AddSumsJob* out) const;
  float* RowsOf(uint32_t layer) const;
  uint32_t n_ring() const { return plan_.policy().sum_last; }
  float* RowOfCall(uint32_t layer, uint32_t row) const {
    return RowsOf(layer) + uint64_t{row + 1} * plan_.max_tokens();
  }
  // Of the call that was the last but n - 1.
  uint32_t RowBack(uint32_t layer, uint32_t n) const {
    return (next_[layer] + n_ring() - n) % n_ring();
  }
  // Where a row's queries end.
  uint32_t& EndOf(uint32_t layer, uint32_t row) {
    return ends_[uint64_t{layer} * n_ring() + row];
  }
  void CountCall(uint32_t layer, uint32_t end);
  void CutCalls(uint32_t layer, uint32_t position);
  void Forget(uint32_t layer);
  // Where graphs count on.
  Status SendNext(Stream stream) const;
  Status AdvanceNext(Stream stream, std::span<const LayerInputs> layers) const;

  const Plan& plan_;
  Array<ObservedRange>
      observed_;          // positions of the queries of each layer's sums
  Array<Calls> calls_;    // of each layer
  Array<uint32_t> next_;  // row of each layer's next call
  Array<uint32_t> ends_;  // [layers, sum_last]
  DeviceArray<uint32_t> device_next_;  // modulo sum_last; where graphs may run
  DeviceArray<float> zeros_;           // [sum_last]
  // Of each layer [Plan::SumRowsOf() * RowsPerSum(), max_tokens].
  LentMemory memory_;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_SUM_TABLE_H_
