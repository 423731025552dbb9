#include "core/view/block_numbers.h"

#include <algorithm>
#include <bitset>
#include <iterator>

#include "core/view/overlap.h"

namespace kvevict {

NumberSet::NumberSet(const BlockNumbers& blocks, uint64_t begin) {
  std::fill(std::begin(slots_), std::end(slots_), kEmpty);
  const uint64_t end = std::min(blocks.size(), begin + kCapacity);
  for (; begin < end; ++begin) {
    const int32_t number = blocks[begin];
    uint32_t i = SlotOf(number);
    while (slots_[i] != kEmpty && slots_[i] != number) i = (i + 1) % kSlots;
    slots_[i] = number;
  }
}

BlockNumbers::BlockNumbers(const BlockTables& tables, int32_t lowest,
                           int32_t highest, bool downwards)
    : tables_(tables),
      per_table_(tables_.MostUsed()),
      sign_(downwards ? -1 : 1),
      first_(downwards ? -highest : lowest),
      last_(downwards ? -lowest : highest) {}

bool LayersOfBlocks::AnyApartBy(const BlockNumbers& a, const BlockNumbers& b,
                                int64_t difference) {
  if (difference == 0) {
    if (a.SameTable(b)) return true;
    if (a.SameDirection(b) && NoneTwice()) return false;
  }
  for (uint64_t begin = 0; begin < b.size(); begin += NumberSet::kCapacity) {
    const NumberSet some(b, begin);
    for (uint64_t i = 0; i < a.size(); ++i) {
      if (some.Contains(a[i] - difference)) return true;
    }
  }
  return false;
}

bool LayersOfBlocks::NoneTwice() {
  if (!has_looked_) {
    has_looked_ = true;
    FindRange();
    none_twice_ = FindNoneTwice();
  }
  return none_twice_;
}

void LayersOfBlocks::FindRange() {
  for (const LayerCache& layer : layers_) {
    if (!layer.knows_blocks) continue;
    lowest_ = std::min(lowest_, layer.lowest_block);
    highest_ = std::max(highest_, layer.highest_block);
  }
}

// Marks ids in a bit set, one window of ids at a time. Returns false if ids are
// spread too far.
bool LayersOfBlocks::FindNoneTwice() const {
  constexpr int64_t kWindow = 1 << 17;
  constexpr int64_t kMostWindows = 64;
  if (int64_t{highest_} - lowest_ >= kMostWindows * kWindow) return false;
  std::bitset<kWindow> seen;
  for (int64_t window = lowest_; window <= highest_; window += kWindow) {
    seen.reset();
    for (uint32_t l = 0; l < layers_.size(); ++l) {
      const LayerCache& layer = layers_[l];
      if (!layer.knows_blocks || layer.owner != l) continue;
      const bool none_twice =
          layer.blocks().ForEachUsed([&](uint64_t, int32_t id) {
            const int64_t place = id - window;
            if (place < 0 || place >= kWindow) return true;
            if (seen[place]) return false;
            seen[place] = true;
            return true;
          });
      if (!none_twice) return false;
    }
  }
  return true;
}

}  // namespace kvevict
