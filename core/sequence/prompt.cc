#include "core/sequence/prompt.h"

#include <algorithm>

namespace kvevict {

Status Prompt::Allocate() {
  return slots_.Allocate("slots of the prompt", CheckedSize(plan_.n_layers()));
}

void Prompt::Reset() {
  n_tokens_ = kNotEnded;
  round_ = 0;
  std::fill(slots_.begin(), slots_.end(), 0);
}

Status Prompt::End(const SlotTable& slots) {
  if (has_ended()) {
    return InvalidArgument("the prompt has already ended, at %u tokens",
                           n_tokens_);
  }
  n_tokens_ = slots.logical_length();
  round_ = 0;
  for (uint32_t l = 0; l < slots_.size(); ++l) slots_[l] = slots[l].stored;
  return Status();
}

void Prompt::CopyFrom(const Prompt& other) {
  n_tokens_ = other.n_tokens_;
  round_ = other.round_;
  std::copy(other.slots_.begin(), other.slots_.end(), slots_.begin());
}

void Prompt::Restore(uint32_t n_tokens, uint32_t round) {
  n_tokens_ = n_tokens;
  round_ = round;
}

void Prompt::Trim(const SlotTable& slots) {
  if (!has_ended()) return;
  n_tokens_ = std::min(n_tokens_, slots.logical_length());
  round_ = std::min(round_, RoundOf(slots.logical_length()));
  for (uint32_t l = 0; l < slots_.size(); ++l) {
    slots_[l] = std::min(slots_[l], slots[l].stored);
  }
}

void Prompt::TakeBack(const Mark& before, const SlotTable& slots) {
  if (n_tokens_ == before.n_tokens) {
    round_ = before.round;
    return;
  }
  // The prompt has ended since. What comes back is part of it.
  for (uint32_t l = 0; l < slots_.size(); ++l) slots_[l] += slots.EvictedOf(l);
}

uint32_t Prompt::RoundFor(const Policy& other) const {
  return round_ * std::max(1u, plan_.policy().every) /
         std::max(1u, other.every);
}

}  // namespace kvevict
