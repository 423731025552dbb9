#include "core/keep_lists.h"

#include <algorithm>

namespace kvevict {

int32_t SlotPositions::PositionOf(uint32_t list, uint32_t slot) const {
  if (slot < n_kept) return kept[uint64_t{list} * n_kept + slot];
  return static_cast<int32_t>(tail_position + (slot - n_kept));
}

int64_t SlotPositions::SlotOf(uint32_t list, int32_t position,
                              uint32_t n_tokens) const {
  if (position >= static_cast<int64_t>(tail_position)) {
    const int64_t slot = int64_t{position} - tail_position + n_kept;
    return slot < n_tokens ? slot : -1;
  }
  const int32_t* begin = kept + uint64_t{list} * n_kept;
  const int32_t* end = begin + n_kept;
  const int32_t* found = std::lower_bound(begin, end, position);
  return found != end && *found == position ? found - begin : -1;
}

}  // namespace kvevict
