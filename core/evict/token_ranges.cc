#include "core/evict/token_ranges.h"

namespace kvevict {

Status TokenRanges::Add(const TokenRange& range) {
  if (n_ == kMost) return InvalidArgument("more than %zu ranges", kMost);
  if (range.first > range.end) {
    return InvalidArgument("first %u > end %u", range.first, range.end);
  }
  if (n_ > 0 && range.first < of_[n_ - 1].end) {
    return InvalidArgument("first %u < %u, the end of the range before",
                           range.first, of_[n_ - 1].end);
  }
  of_[n_++] = range;
  return Status();
}

SlotRanks::SlotRanks(std::span<const TokenRange> ranges, SlotBlocks blocks,
                     const SlotPositions& slots, uint32_t list,
                     uint32_t n_tokens)
    : blocks_(blocks), n_tokens_(n_tokens) {
  for (const TokenRange& range : ranges) {
    const uint32_t begin = slots.FirstFrom(list, range.first, n_tokens);
    const uint32_t end = slots.FirstFrom(list, range.end, n_tokens);
    if (begin < end) of_[n_++] = {begin, end, range.rank};
  }
}

RankedSlots SlotRanks::Run(uint32_t begin, size_t* range) const {
  while (*range < n_ && of_[*range].end <= begin) ++*range;
  if (*range == n_) return {begin, n_tokens_, 0};
  const RankedSlots& next = of_[*range];
  if (next.begin > begin) return {begin, next.begin, 0};
  return {begin, next.end, next.rank};
}

RankedSlots SlotRanks::From(uint32_t begin, size_t* range) const {
  RankedSlots slots = Run(begin, range);
  const uint32_t end = blocks_.EndOf(begin, n_tokens_);
  if (slots.end >= end) {  // cut to whole blocks
    if (slots.end < n_tokens_) slots.end = blocks_.BeginOf(slots.end);
    return slots;
  }
  while (slots.end < end) {
    const RankedSlots next = Run(slots.end, range);
    slots.end = next.end;
    slots.rank = std::max(slots.rank, next.rank);
  }
  slots.end = end;
  return slots;
}

}  // namespace kvevict
