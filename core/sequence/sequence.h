// What one request carries between steps.
#ifndef KVEVICT_CORE_SEQUENCE_SEQUENCE_H_
#define KVEVICT_CORE_SEQUENCE_SEQUENCE_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/memory/device_array.h"
#include "core/plan/plan.h"
#include "core/sequence/prompt.h"
#include "core/sequence/query_ring.h"
#include "core/sequence/slot_table.h"
#include "core/sequence/sum_table.h"
#include "core/status.h"

namespace kvevict {

class EvictCall;

// Slots in use by a keep list, around the last eviction.
struct ListReport {
  uint32_t tokens_before = 0;
  uint32_t tokens_after = 0;
};

class Sequence {
 public:
  static Status Create(const Plan& plan, Sequence** out);
  // One of a plan that goes on from where `from` is; memory as for BeginObserving(),
  // where that observes, and the new one can go on with its rows.
  static Status Fork(const Sequence& from, const Plan& plan, void* memory,
                     size_t memory_bytes, Stream stream, Sequence** out);

  explicit Sequence(const Plan& plan);
  ~Sequence();
  void Destroy();

  const Plan& plan() const { return *plan_; }
  // Of the last call that had one.
  Stream stream() const { return stream_; }
  void set_stream(Stream stream) { stream_ = stream; }
  uint32_t logical_length() const { return slots_.logical_length(); }
  const SlotTable& slots() const { return slots_; }
  SlotTable& slots() { return slots_; }

  Status Reset();
  // Of an empty one: tokens [0, n_tokens) in all lists, or positions of which only the
  // lists are given.
  Status Start(uint32_t n_tokens);
  Status Start(std::span<LayerPositions> layers, uint32_t n_tokens);
  // Of any: as one was that had these positions.
  Status Restore(std::span<const LayerPositions> layers, uint32_t n_tokens);
  // Behind that, where its prompt ended.
  void RestorePrompt(std::span<const LayerPositions> layers, uint32_t n_tokens,
                     uint32_t round);
  Status BeginObserving(void* memory, size_t memory_bytes);
  void EndObserving() {
    ring_.End();
    sums_.End();
  }
  Status CheckAppend(uint32_t n_tokens) const {
    return slots_.CheckAppend(n_tokens);
  }
  Status Append(uint32_t n_tokens);
  Status Replayed(uint32_t n_tokens);
  Status CheckTrim(uint32_t new_length) const {
    return slots_.CheckTrim(stream_, new_length);
  }
  Status Trim(uint32_t new_length);

  Status EndPrompt() { return prompt_.End(slots_); }
  // As if it had not ended.
  void ReopenPrompt() { prompt_.Reset(); }
  const Prompt& prompt() const { return prompt_; }
  // An eviction has worked.
  void BeginRound() { prompt_.BeginRound(logical_length()); }
  // Before the outcomes of an eviction are recorded: all that TakeBack() goes back to.
  void Remember();
  // Whether undo memory has sums too.
  bool saved_sums() const { return saved_sums_; }
  // After SlotTable::Exchange(), and when rows are where they were.
  Status TakeBack();

  // Of ascending layers.
  Status CheckObserve(std::span<const LayerInputs> layers, uint32_t n_rows,
                      uint32_t first_position) const;
  Status Observe(std::span<const LayerInputs> layers, uint32_t n_rows,
                 uint32_t first_position);

  // Lists per layer are told apart by `list`; KV heads that share one have list
  // 0.
  uint32_t ListOf(uint32_t layer, uint32_t kv_head) const {
    return plan().layer(layer).n_lists == 1 ? 0 : kv_head;
  }
  uint32_t Stored(uint32_t layer, uint32_t kv_head) const {
    return slots_.HostTokens(layer).Of(ListOf(layer, kv_head));
  }
  // Of a layer, in host memory; waits for the device where that has evicted since.
  Status HostPositions(uint32_t layer, SlotPositions* out) const {
    return slots_.HostPositions(stream_, layer, out);
  }
  // Tokens that every list holds where they were stored; waits likewise.
  Status ExactPrefix(uint32_t* out) const {
    return slots_.ExactPrefix(stream_, out);
  }

  void ForgetLse(uint32_t layer) { ring_.ForgetLse(layer); }
  void ForgetQueries(uint32_t layer) { ring_.Forget(layer); }
  // Whether a layer holds the tokens of the last n_rows queries, and the query ring
  // those of its window, where none are given.
  Status CheckQueries(uint32_t layer, uint32_t n_rows,
                      const LayerInputs& inputs) const;
  QueryRows WindowQueries(uint32_t layer) const {
    return ring_.WindowOf(layer, logical_length());
  }

  const SumTable& sums() const { return sums_; }
  SumTable& sums() { return sums_; }

  // What is given to a call, checked, and then run; see core/evict.
  EvictCall& call() const { return *call_; }
  // Around a call for many sequences, of which it is one item, on one stream; where it
  // stays if that succeeds.
  static constexpr size_t kNoItem = SIZE_MAX;
  size_t item() const { return item_; }
  void EnterBatch(size_t item, Stream stream) {
    item_ = item;
    last_stream_ = stream_;
    stream_ = stream;
  }
  void LeaveBatch(bool succeeded) {
    item_ = kNoItem;
    if (!succeeded) stream_ = last_stream_;
  }

  // What the last eviction did.
  void ClearReport();
  void BeginReport();
  // An eviction has been reported since the last ClearReport().
  bool has_report() const { return has_report_; }
  kvevict_evict_report& report() { return report_; }
  const kvevict_evict_report& report() const { return report_; }
  std::span<ListReport> list_reports() const;  // of all lists
  // Where the plan reports mass: of the lists of a layer that loses tokens, in memory of
  // the device.
  Mass* DeviceMasses(uint32_t layer) const;
  // Of all lists, in host memory; waits for the device.
  Status HostMasses(std::span<const Mass>* out) const;

 private:
  Status Allocate();
  Status CheckEmpty() const;
  Status CopyFrom(const Sequence& other);
  Status TakeOver(const Sequence& other);
  // KVEVICT_POSITION_NEXT becomes the position that it stands for.
  QueryChunk ChunkOf(uint32_t n_rows, uint32_t first_position) const;

  const Retained<Plan> plan_;
  Stream stream_ = nullptr;
  SlotTable slots_;
  QueryRing ring_;
  SumTable sums_;
  Prompt prompt_;
  Prompt::Mark prompt_before_;  // the eviction that slots_ remembers
  bool saved_sums_ = false;     // by that one
  EvictCall* call_ = nullptr;
  size_t item_ = kNoItem;
  Stream last_stream_ = nullptr;
  kvevict_evict_report report_ = KVEVICT_EVICT_REPORT_INIT;
  bool has_report_ = false;
  Array<ListReport> list_reports_;  // [lists]
  DeviceArray<Mass> masses_;        // [lists], or none
  Array<Mass> host_masses_;         // what the host has read, where it has to
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_SEQUENCE_H_
