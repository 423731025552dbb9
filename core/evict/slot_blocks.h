// Slots that stay or go together: block i has slots [i * size, (i + 1) * size).
// The last block of a list has the rest. If it is not full it stays, so a list
// always loses a multiple of the size.
#ifndef KVEVICT_CORE_EVICT_SLOT_BLOCKS_H_
#define KVEVICT_CORE_EVICT_SLOT_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace kvevict {

struct SlotBlocks {
  uint32_t size = 1;

  static constexpr uint32_t kMostSize = 65536;

  uint32_t Count(uint32_t n_tokens) const {
    return static_cast<uint32_t>((uint64_t{n_tokens} + size - 1) / size);
  }
  uint64_t RoundUp(uint64_t n) const { return (n + size - 1) / size * size; }
  uint32_t BeginOf(uint32_t slot) const { return slot - slot % size; }
  uint32_t EndOf(uint32_t slot, uint32_t n_tokens) const {
    return std::min(n_tokens - BeginOf(slot), size) + BeginOf(slot);
  }
  // The slots at the end that stay if the last n_recent must, since blocks stay
  // whole.
  uint32_t Recent(uint32_t n_recent, uint32_t n_tokens) const {
    if (n_recent >= n_tokens) return n_recent;
    return n_tokens - BeginOf(n_tokens - n_recent);
  }
  // The tokens in n_blocks of a list of n_tokens. The last block is one of
  // them.
  uint32_t TokensOf(uint32_t n_blocks, uint32_t n_tokens) const {
    return n_tokens - (Count(n_tokens) - n_blocks) * size;
  }
  // The most tokens that a list of n_tokens keeps within a budget. A last block
  // that is not full stays even if it exceeds the budget.
  uint32_t Within(uint32_t budget, uint32_t n_tokens) const {
    if (budget >= n_tokens) return n_tokens;
    const uint64_t lost = RoundUp(n_tokens - budget);
    return n_tokens -
           static_cast<uint32_t>(std::min<uint64_t>(lost, BeginOf(n_tokens)));
  }
};

// Counts the slots of a list that must stay: those at both ends, and others
// that are added in ascending order.
class ForcedSlots {
 public:
  ForcedSlots(SlotBlocks blocks, uint32_t n_sink, uint32_t n_recent,
              uint32_t n_tokens)
      : blocks_(blocks),
        sink_(blocks.RoundUp(n_sink)),
        recent_(blocks.Recent(n_recent, n_tokens)),
        end_(int64_t{n_tokens} - recent_) {}

  void Add(int64_t slot) {
    if (slot < static_cast<int64_t>(sink_) || slot >= end_) return;
    ++n_added_;
    const uint64_t block = static_cast<uint64_t>(slot) / blocks_.size + 1;
    n_blocks_ += block != last_;
    last_ = block;
  }
  uint64_t ends() const { return sink_ + recent_; }
  uint64_t count() const { return ends() + n_blocks_ * blocks_.size; }
  // The added slots that are not among the ends.
  unsigned long long n_added() const { return n_added_; }

 private:
  const SlotBlocks blocks_;
  const uint64_t sink_;
  const uint64_t recent_;
  const int64_t end_;
  uint64_t n_added_ = 0;
  uint64_t n_blocks_ = 0;
  uint64_t last_ = 0;  // the last added block, counted from 1
};

// The end of a message about numbers of slots.
struct BlockWords {
  char text[40] = "";

  explicit BlockWords(SlotBlocks blocks) {
    if (blocks.size == 1) return;
    std::snprintf(text, sizeof(text), ", in whole blocks of %u", blocks.size);
  }
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_SLOT_BLOCKS_H_
