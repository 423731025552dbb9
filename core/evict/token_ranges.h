// Tokens that are evicted later or sooner than others: see kvevict_token_range.
#ifndef KVEVICT_CORE_EVICT_TOKEN_RANGES_H_
#define KVEVICT_CORE_EVICT_TOKEN_RANGES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "core/evict/slot_blocks.h"
#include "core/status.h"

namespace kvevict {

struct TokenRange {
  uint32_t first = 0;  // a position
  uint32_t end = 0;
  int32_t rank = 0;
};

// The ranges that a call is given. They ascend and do not overlap.
class TokenRanges {
 public:
  static constexpr size_t kMost = 64;

  Status Add(const TokenRange& range);
  std::span<const TokenRange> all() const { return {of_, n_}; }

 private:
  TokenRange of_[kMost];
  size_t n_ = 0;
};

// Adjacent slots of one rank, in whole blocks.
struct RankedSlots {
  uint32_t begin;
  uint32_t end;
  int32_t rank;
};

// The slots of one list by rank. Slots in no range have rank 0. A block has the
// highest rank of its slots.
class SlotRanks {
 public:
  SlotRanks(std::span<const TokenRange> ranges, SlotBlocks blocks,
            const SlotPositions& slots, uint32_t list, uint32_t n_tokens);

  // Calls visit(RankedSlots) for all slots in order. Adjacent runs may have the
  // same rank.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    size_t range = 0;  // first range that ends after `begin`
    for (RankedSlots slots = {0, 0, 0}; slots.begin < n_tokens_;
         slots.begin = slots.end) {
      slots = From(slots.begin, &range);
      visit(slots);
    }
  }

 private:
  // The run that begins at slot `begin`, the first slot of a block.
  RankedSlots From(uint32_t begin, size_t* range) const;
  // The run of single slots that begins at slot `begin`.
  RankedSlots Run(uint32_t begin, size_t* range) const;

  const SlotBlocks blocks_;
  const uint32_t n_tokens_;
  RankedSlots of_[TokenRanges::kMost];  // ranges of slots that are held
  size_t n_ = 0;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_TOKEN_RANGES_H_
