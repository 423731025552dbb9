// Where a request's prompt ends, and which evictions behind it are due.
#ifndef KVEVICT_CORE_SEQUENCE_PROMPT_H_
#define KVEVICT_CORE_SEQUENCE_PROMPT_H_

#include <cstdint>

#include "core/plan/plan.h"
#include "core/policy/params.h"
#include "core/sequence/slot_table.h"
#include "core/status.h"

namespace kvevict {

class Prompt {
 public:
  static constexpr uint32_t kNotEnded = UINT32_MAX;

  explicit Prompt(const Plan& plan) : plan_(plan), slots_(plan.context()) {}

  Status Allocate();
  void Reset();
  // What is stored now is the prompt.
  Status End(const SlotTable& slots);
  // Of a sequence of the same plan.
  void CopyFrom(const Prompt& other);
  // As it was when it was saved, but for the slots, which follow by layer.
  void Restore(uint32_t n_tokens, uint32_t round);
  void RestoreSlots(uint32_t layer, uint32_t n) { slots_[layer] = n; }
  // Nothing of it lies behind what is stored now.
  void Trim(const SlotTable& slots);

  bool has_ended() const { return n_tokens_ != kNotEnded; }
  // Tokens; where it has not ended kNotEnded.
  uint32_t n_tokens() const { return n_tokens_; }
  // Slots of a layer that were in use when it ended; 0 before.
  uint32_t SlotsOf(uint32_t layer) const { return slots_[layer]; }
  // Of n_seen tokens those behind it, or all.
  uint32_t Behind(uint32_t n_seen) const {
    return has_ended() ? n_seen - n_tokens_ : n_seen;
  }

  // Nothing is evicted before it has ended.
  bool IsAwaited() const {
    return !has_ended() && AwaitsPrompt(plan_.policy());
  }
  // Whether the policy lets an eviction work now.
  bool IsDue(uint32_t n_seen) const;
  // One has worked.
  void BeginRound(uint32_t n_seen) { round_ = RoundOf(n_seen); }
  // Which multiple of the policy's `every` was reached when one worked last.
  uint32_t round() const { return round_; }
  // The same for another policy.
  uint32_t RoundFor(const Policy& other) const;

  // What evictions and its end change.
  struct Mark {
    uint32_t n_tokens = kNotEnded;
    uint32_t round = 0;
  };
  Mark mark() const { return {n_tokens_, round_}; }
  // The eviction that `slots` remembers, before which it was so, is taken back.
  void TakeBack(const Mark& before, const SlotTable& slots);

 private:
  uint32_t RoundOf(uint32_t n_seen) const;

  const Plan& plan_;
  uint32_t n_tokens_ = kNotEnded;
  uint32_t round_ = 0;
  Array<uint32_t> slots_;  // [n_layers]
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_PROMPT_H_
