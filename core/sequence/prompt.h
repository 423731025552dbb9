// The end of a request's prompt, and which evictions after it are due.
#ifndef KVEVICT_CORE_SEQUENCE_PROMPT_H_
#define KVEVICT_CORE_SEQUENCE_PROMPT_H_

#include <algorithm>
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
  // Ends the prompt with what is stored now.
  Status End(const SlotTable& slots);
  // `other` is that of a sequence of the same plan.
  void CopyFrom(const Prompt& other);
  // Restores a saved state except the slots, which RestoreSlots() sets per
  // layer.
  void Restore(uint32_t n_tokens, uint32_t round);
  void RestoreSlots(uint32_t layer, uint32_t n) { slots_[layer] = n; }
  // Cuts the prompt to what is stored now.
  void Trim(const SlotTable& slots);

  bool has_ended() const { return n_tokens_ != kNotEnded; }
  // The length in tokens, or kNotEnded.
  uint32_t n_tokens() const { return n_tokens_; }
  // A layer's slots that were in use when the prompt ended; 0 before.
  uint32_t SlotsOf(uint32_t layer) const { return slots_[layer]; }
  // The number of n_seen tokens that follow the prompt, or all if it has not
  // ended.
  uint32_t Behind(uint32_t n_seen) const {
    return has_ended() ? n_seen - n_tokens_ : n_seen;
  }

  // True if evictions wait for the end of the prompt.
  bool IsAwaited() const {
    return !has_ended() && AwaitsPrompt(plan_.policy());
  }
  // Whether the policy allows an eviction now.
  bool IsDue(uint32_t n_seen) const {
    if (!has_ended()) return !IsAwaited();
    return plan_.policy().every <= 1 || RoundOf(n_seen) > round_;
  }
  // Records that an eviction has run.
  void BeginRound(uint32_t n_seen) { round_ = RoundOf(n_seen); }
  // The multiple of the policy's `every` that was reached at the last eviction.
  uint32_t round() const { return round_; }
  // The round that another policy starts with.
  uint32_t RoundFor(const Policy& other) const;

  // The state that evictions and the end of the prompt change.
  struct Mark {
    uint32_t n_tokens = kNotEnded;
    uint32_t round = 0;
  };
  Mark mark() const { return {n_tokens_, round_}; }
  // Undoes the eviction that `slots` remembers. `before` is the state before
  // it.
  void TakeBack(const Mark& before, const SlotTable& slots);

 private:
  uint32_t RoundOf(uint32_t n_seen) const {
    return Behind(n_seen) / std::max(1u, plan_.policy().every);
  }

  const Plan& plan_;
  uint32_t n_tokens_ = kNotEnded;
  uint32_t round_ = 0;
  Array<uint32_t> slots_;  // [n_layers]
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_PROMPT_H_
