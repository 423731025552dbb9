#include "core/evict/keep_lists.h"

#include <algorithm>

namespace kvevict {

int64_t SlotPositions::SlotOf(uint32_t list, int32_t position,
                              uint32_t n_tokens) const {
  int64_t slot = int64_t{position} - tail_position + n_kept.Of(list);
  if (position < static_cast<int64_t>(tail_position)) {
    const int32_t* begin = kept + uint64_t{list} * n_kept.most;
    const int32_t* end = begin + n_kept.Of(list);
    const int32_t* found = std::lower_bound(begin, end, position);
    if (found == end || *found != position) return -1;
    slot = found - begin;
  }
  slot -= first;
  return slot < n_tokens ? std::max<int64_t>(slot, -1) : -1;
}

uint32_t SlotPositions::FirstFrom(uint32_t list, uint32_t position,
                                  uint32_t n_tokens) const {
  int64_t slot = int64_t{position} - tail_position + n_kept.Of(list);
  if (position < tail_position) {
    const int32_t* begin = kept + uint64_t{list} * n_kept.most;
    slot = std::lower_bound(begin, begin + n_kept.Of(list), position,
                            [](int32_t a, uint32_t b) {
                              return static_cast<uint32_t>(a) < b;
                            }) -
           begin;
  }
  return static_cast<uint32_t>(std::clamp<int64_t>(slot - first, 0, n_tokens));
}

uint32_t SlotPositions::PrefixOf(uint32_t list, uint32_t n_tokens) const {
  const uint32_t n_listed = n_kept.Of(list);
  const int32_t* begin = kept + uint64_t{list} * n_kept.most;
  // Positions ascend, so no position after the first that differs from its slot
  // equals its own.
  const int32_t* end = std::partition_point(
      begin, begin + n_listed, [begin](const int32_t& position) {
        return position == &position - begin;
      });
  const auto n = static_cast<uint32_t>(end - begin);
  return n == n_listed && tail_position == n_listed ? n_tokens : n;
}

}  // namespace kvevict
