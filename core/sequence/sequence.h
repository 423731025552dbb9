// The state that one request carries between steps.
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

// The slots in use by a keep list before and after the last eviction.
struct ListReport {
  uint32_t tokens_before = 0;
  uint32_t tokens_after = 0;
};

class Sequence {
 public:
  static Status Create(const Plan& plan, Sequence** out);
  // Creates a sequence of `plan` that continues from `from`. If `from` observes
  // and the new one can use its rows, memory is as for BeginObserving().
  static Status Fork(const Sequence& from, const Plan& plan, void* memory,
                     size_t memory_bytes, Stream stream, Sequence** out);

  explicit Sequence(const Plan& plan);
  ~Sequence();
  void Destroy();

  const Plan& plan() const { return *plan_; }
  // The stream of the last call that had one.
  Stream stream() const { return stream_; }
  void set_stream(Stream stream) { stream_ = stream; }
  uint32_t logical_length() const { return slots_.logical_length(); }
  const SlotTable& slots() const { return slots_; }
  SlotTable& slots() { return slots_; }

  Status Reset();
  // Starts an empty sequence: with tokens [0, n_tokens) in all lists, or with
  // the lists of `layers`.
  Status Start(uint32_t n_tokens);
  Status Start(std::span<LayerPositions> layers, uint32_t n_tokens);
  // Puts any sequence in the state of one with these positions.
  Status Restore(std::span<const LayerPositions> layers, uint32_t n_tokens,
                 uint32_t edited_from = SlotTable::kNotEdited);
  // Follows Restore(): sets where the prompt ended.
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
  // Makes the prompt one that has not ended.
  void ReopenPrompt() { prompt_.Reset(); }
  const Prompt& prompt() const { return prompt_; }
  // Records that an eviction has run.
  void BeginRound() { prompt_.BeginRound(logical_length()); }
  // Remembers all that TakeBack() restores, before the outcomes of an eviction
  // are recorded.
  void Remember();
  // True if the undo memory has sums too.
  bool saved_sums() const { return saved_sums_; }
  // Restores what Remember() noted, after SlotTable::Exchange() and after the
  // rows are back.
  Status TakeBack();

  // `layers` ascend.
  Status CheckObserve(std::span<const LayerInputs> layers, uint32_t n_rows,
                      uint32_t first_position) const;
  Status Observe(std::span<const LayerInputs> layers, uint32_t n_rows,
                 uint32_t first_position);

  // The index of a KV head's list in its layer. It is 0 if the heads share one.
  uint32_t ListOf(uint32_t layer, uint32_t kv_head) const {
    return plan().layer(layer).n_lists == 1 ? 0 : kv_head;
  }
  uint32_t Stored(uint32_t layer, uint32_t kv_head) const {
    return slots_.HostTokens(layer).Of(ListOf(layer, kv_head));
  }
  // A layer's positions in host memory. Waits for the device if that has
  // evicted since the last call.
  Status HostPositions(uint32_t layer, SlotPositions* out) const {
    return slots_.HostPositions(stream_, layer, out);
  }
  // The number of first tokens that every list holds in their original slots.
  // Waits like HostPositions().
  Status ExactPrefix(uint32_t* out) const {
    return slots_.ExactPrefix(stream_, out);
  }

  void CutQueries(uint32_t position) { ring_.Cut(position); }
  void ForgetQueriesOf(uint32_t first, uint32_t end) {
    ring_.ForgetSpan(first, end);
  }
  void ForgetLse(uint32_t layer) { ring_.ForgetLse(layer); }
  void ForgetQueries(uint32_t layer) { ring_.Forget(layer); }
  // Checks that every list of a layer holds at least n_tokens tokens.
  Status CheckStored(uint32_t layer, const char* name, uint32_t n_tokens) const;
  // Checks that a layer holds the tokens of the last n_rows queries. If none
  // are given, also that the query ring holds those of the window.
  Status CheckQueries(uint32_t layer, uint32_t n_rows,
                      const LayerInputs& inputs) const;
  QueryRows WindowQueries(uint32_t layer) const {
    return ring_.WindowOf(layer, logical_length());
  }

  const SumTable& sums() const { return sums_; }
  SumTable& sums() { return sums_; }

  // The arguments of a call, which are checked and then run; see core/evict.
  EvictCall& call() const { return *call_; }
  // For a batched call on one stream in which this sequence is an item. If the
  // call succeeds the sequence stays on the stream.
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
  // True if an eviction has been reported since the last ClearReport().
  bool has_report() const { return has_report_; }
  kvevict_evict_report& report() { return report_; }
  const kvevict_evict_report& report() const { return report_; }
  std::span<ListReport> list_reports() const;  // [lists]
  // The masses of the lists of a layer that loses tokens, in device memory.
  // Only for plans that report mass.
  Mass* DeviceMasses(uint32_t layer) const;
  // The masses of all lists in host memory. Waits for the device.
  Status HostMasses(std::span<const Mass>* out) const;

 private:
  Status Allocate();
  Status CheckEmpty() const;
  Status CopyFrom(const Sequence& other);
  Status TakeOver(const Sequence& other);
  // Replaces KVEVICT_POSITION_NEXT by the position that it stands for.
  QueryChunk ChunkOf(uint32_t n_rows, uint32_t first_position) const;

  const Retained<Plan> plan_;
  Stream stream_ = nullptr;
  SlotTable slots_;
  QueryRing ring_;
  SumTable sums_;
  Prompt prompt_;
  Prompt::Mark prompt_before_;  // before the eviction that slots_ remembers
  bool saved_sums_ = false;     // by that eviction
  EvictCall* call_ = nullptr;
  size_t item_ = kNoItem;
  Stream last_stream_ = nullptr;
  kvevict_evict_report report_ = KVEVICT_EVICT_REPORT_INIT;
  bool has_report_ = false;
  Array<ListReport> list_reports_;  // [lists]
  DeviceArray<Mass> masses_;        // [lists], or empty
  Array<Mass> host_masses_;         // the host's copy, if it needs one
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_SEQUENCE_H_
