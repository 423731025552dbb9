// A number for every slot that moves with it: a row of f32 for each KV head,
// query head or layer. It is the attention that the slot has received, added up
// step by step, or the score that the caller gave its token. If the policy
// wants the sum of the last calls only, there is a row for each of these calls
// until the layer's next eviction.
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

// Holds sums while it has memory for them. Does nothing if the plan's policy
// scores neither by attention sums nor by the caller's scores.
class SumTable {
 public:
  explicit SumTable(const Plan& plan);  // must outlive this

  Status Allocate();
  // See LentMemory.
  Status Begin(void* memory, size_t memory_bytes);
  void End();
  bool has_memory() const { return memory_.is_there(); }
  // Whether it can copy the sums of another table of the same layers.
  bool IsLike(const SumTable& other) const;
  // Copies the sums of a like table. Both have memory, or neither has.
  Status CopyFrom(Stream stream, const SumTable& other);
  // Forgets all sums.
  void Reset();
  // Cuts sums to queries before `position`. What later rows have added stays,
  // except with single calls.
  Status Cut(Stream stream, uint32_t position);
  // Records rows that a graph has added.
  void Replayed(uint32_t first_position, uint32_t n_rows);

  // Adds a chunk's attention, or the scores of its tokens. `layers` ascend.
  Status CheckAdd(const SlotTable& slots, std::span<const LayerInputs> layers,
                  const QueryChunk& chunk) const;
  Status Add(Stream stream, const SlotTable& slots,
             std::span<const LayerInputs> layers, const QueryChunk& chunk);

  // Whether a layer has sums.
  bool Has(uint32_t layer) const {
    return observed_.size() > 0 && !observed_[layer].empty();
  }
  // Checks that no sums are of tokens past `logical`.
  Status CheckNotAhead(uint32_t logical) const;
  // Checks that a layer's sums include all queries up to the last of `logical`.
  Status CheckUpTo(uint32_t layer, uint32_t logical) const;
  // The number of queries in a layer's sums.
  uint32_t CountOf(uint32_t layer) const {
    return observed_[layer].end - observed_[layer].begin;
  }
  // Whether each call has a row of its own.
  bool KeepsCalls() const {
    return plan_.ObservesSums() && plan_.policy().sum_last > 0;
  }
  // Adds up the calls of layers for PlaneOf().
  Status SumCalls(Stream stream, const SlotTable& slots,
                  Jobs<uint32_t> layers) const;
  // A layer's sums as a caller would pass them. There must be memory.
  kvevict_plane PlaneOf(uint32_t layer) const;
  // The same as rows of a cache. The sums of a KV head are one row of several
  // elements.
  kvevict_view ViewOf(uint32_t layer) const;

  // Moves sums with the rows of layers that lose slots, before that is
  // recorded. Sums that stop before the last token are forgotten. So are single
  // calls; if saved for an undo they move but count no more.
  Status Move(Stream stream, const SlotTable& slots,
              std::span<const LayerOutcome> layers, bool are_saved,
              std::span<uint8_t> scratch);

  // The position at which a layer's scores of stored tokens end, which a saved
  // sequence has; 0: it has none.
  uint32_t ScoresEnd(const SlotTable& slots, uint32_t layer) const;
  // Copies the first `n` scores of a row from or to host memory. Both wait for
  // the device.
  Status ReadRow(Stream stream, uint32_t layer, uint32_t row, uint32_t n,
                 float* out) const;
  Status WriteRow(Stream stream, uint32_t layer, uint32_t row, uint32_t n,
                  const float* scores) const;
  // Follows WriteRow(): the scores of a layer are of the tokens up to `end`.
  void RestoreScores(uint32_t layer, uint32_t end);

  // Whether an edit of a sequence of `logical` tokens moves a layer's sums. It
  // drops others.
  bool Follows(uint32_t layer, uint32_t logical) const {
    return has_memory() && Has(layer) && !KeepsCalls() &&
           observed_[layer].end == logical;
  }
  // Records an edit. As many queries as before are in the sums.
  void Renumber(uint32_t logical_before, uint32_t logical);

  // Whether sums change when a layer gets back slots that it lost when there
  // were n_tokens.
  bool ComeBack(uint32_t layer, uint32_t n_tokens) const {
    return KeepsCalls() ? calls_[layer].n > 0
                        : Has(layer) && observed_[layer].begin < n_tokens;
  }
  // Puts back rows of single calls; `job` is for all of them. Calls from before
  // the eviction get what was saved. Later ones could not see these slots and
  // get zeros.
  Status PutBackCalls(Stream stream, uint32_t layer, const MoveJob& job) const;
  // Follows PutBackCalls() or the restored sums: counts them again.
  void TakeBack(uint32_t layer, uint32_t n_tokens);

 private:
  // The calls of a layer, in a ring of rows. The last `n` before its next row
  // are there.
  struct Calls {
    uint32_t n = 0;
    // the last of these; others came before an eviction
    uint32_t n_counted = 0;
    uint32_t n_ever = 0;    // except those taken back
    bool is_shown = false;  // also by graphs
    ObservedRange before;   // queries of calls that no longer count
  };

  // The rows of a chunk that the policy scores by; NULL if none are given.
  const kvevict_plane* RowsIn(const LayerInputs& inputs) const {
    return plan_.ObservesScores() ? inputs.scores : inputs.attention_sums;
  }
  // What they are, in messages.
  const char* RowsName() const {
    return plan_.ObservesScores() ? "scores are of the tokens"
                                  : "sums are of the queries";
  }
  Status CheckFollows(const SlotTable& slots, uint32_t layer,
                      const QueryChunk& chunk) const;
  Status FindJob(const SlotTable& slots, const LayerInputs& inputs,
                 const QueryChunk& chunk, AddSumsJob* out) const;
  float* RowsOf(uint32_t layer) const;
  uint32_t n_ring() const { return plan_.policy().sum_last; }
  float* RowOfCall(uint32_t layer, uint32_t row) const {
    return RowsOf(layer) + uint64_t{row + 1} * plan_.max_tokens();
  }
  // The row of the n-th last call, n >= 1.
  uint32_t RowBack(uint32_t layer, uint32_t n) const {
    return (next_[layer] + n_ring() - n) % n_ring();
  }
  // The position at which a row's queries end.
  uint32_t& EndOf(uint32_t layer, uint32_t row) {
    return ends_[uint64_t{layer} * n_ring() + row];
  }
  void CountCall(uint32_t layer, uint32_t end);
  void CutCalls(uint32_t layer, uint32_t position);
  void Forget(uint32_t layer);
  // The rows at which graphs go on.
  Status SendNext(Stream stream) const;
  Status AdvanceNext(Stream stream, std::span<const LayerInputs> layers) const;

  const Plan& plan_;
  Array<ObservedRange>
      observed_;          // positions of the queries in each layer's sums
  Array<Calls> calls_;    // [n_layers]
  Array<uint32_t> next_;  // [layers] row of the next call
  Array<uint32_t> ends_;  // [layers, sum_last]
  // modulo sum_last; only if graphs may run
  DeviceArray<uint32_t> device_next_;
  DeviceArray<float> zeros_;  // [sum_last]
  // Each layer has [Plan::SumRowsOf() * RowsPerSum(), max_tokens].
  LentMemory memory_;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_SUM_TABLE_H_
