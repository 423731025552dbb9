// The slots that survive, and the positions that slots hold.
#ifndef KVEVICT_CORE_EVICT_KEEP_LISTS_H_
#define KVEVICT_CORE_EVICT_KEEP_LISTS_H_

#include <cstdint>

namespace kvevict {

// The number of elements in each list of a layer.
struct ListCounts {
  uint32_t most;         // of the longest list
  uint32_t step;         // distance in `each` from list to list
  const uint32_t* each;  // device memory; nullptr: all have `most`
  uint32_t more = 0;     // added to each element of `each`

  // NOLINTNEXTLINE: one number is meant to do
  ListCounts(uint32_t most = 0, const uint32_t* each = nullptr,
             uint32_t step = 1)
      : most(most), step(step), each(each) {}

  // Only for a device that is the host.
  uint32_t Of(uint32_t list) const {
    return each == nullptr ? most : each[uint64_t{list} * step] + more;
  }
};

// The slots to keep in one layer, in device memory. There is one list for all
// KV heads or one for each.
struct KeepLists {
  int32_t* slots = nullptr;  // [n_lists, stride]; nullptr: 0, 1, ...
  uint32_t n_lists = 1;
  ListCounts count;
  uint64_t stride = 0;  // >= count.most

  static KeepLists Packed(int32_t* slots, uint32_t n_lists, ListCounts count) {
    return {slots, n_lists, count, count.most};
  }
  uint64_t n_elements() const { return stride * n_lists; }
  int32_t* List(uint32_t list) const {
    return slots == nullptr ? nullptr : slots + list * stride;
  }
  uint32_t IndexOf(uint32_t head) const { return n_lists == 1 ? 0 : head; }
  // The list of a KV head, and its length.
  int32_t* ListOf(uint32_t head) const { return List(IndexOf(head)); }
  uint32_t CountOf(uint32_t head) const { return count.Of(IndexOf(head)); }
};

// The positions that a layer's slots hold. Those of the first n_kept slots are
// listed; the rest count up from tail_position. By default slot and position
// are equal. Slots are counted from `first`, which is 0 except in jobs of a
// chunk.
struct SlotPositions {
  const int32_t* kept = nullptr;  // [n_lists, n_kept.most], ascending per list
  ListCounts n_kept;
  uint32_t n_lists = 1;
  uint32_t tail_position = 0;  // position of slot n_kept
  uint32_t first = 0;

  int32_t PositionOf(uint32_t list, uint32_t slot) const {
    slot += first;
    const uint32_t n_listed = n_kept.Of(list);
    if (slot < n_listed) return kept[uint64_t{list} * n_kept.most + slot];
    return static_cast<int32_t>(tail_position + (slot - n_listed));
  }
  // The slot that holds `position` among n_tokens slots, or -1.
  int64_t SlotOf(uint32_t list, int32_t position, uint32_t n_tokens) const;
  // The first of n_tokens slots whose position is `position` or later, or
  // n_tokens.
  uint32_t FirstFrom(uint32_t list, uint32_t position, uint32_t n_tokens) const;
  // How many of n_tokens slots come before the first whose position is not its
  // own number.
  uint32_t PrefixOf(uint32_t list, uint32_t n_tokens) const;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_KEEP_LISTS_H_
