// Which slots survive, and which position a slot holds.
#ifndef KVEVICT_CORE_EVICT_KEEP_LISTS_H_
#define KVEVICT_CORE_EVICT_KEEP_LISTS_H_

#include <cstdint>

namespace kvevict {

// How many each list of a layer has.
struct ListCounts {
  uint32_t most;         // of any list
  uint32_t step;         // elements of `each` from list to list
  const uint32_t* each;  // in memory of the device; nullptr: all alike
  uint32_t more = 0;     // of each list than `each` says

  // NOLINTNEXTLINE: one number is meant to do
  ListCounts(uint32_t most = 0, const uint32_t* each = nullptr,
             uint32_t step = 1)
      : most(most), step(step), each(each) {}

  // Where the device is the host.
  uint32_t Of(uint32_t list) const {
    return each == nullptr ? most : each[uint64_t{list} * step] + more;
  }
};

// Slots to keep of one layer, in memory of the device: a list for all KV heads, or
// one for each.
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
  // The list of a KV head.
  int32_t* ListOf(uint32_t head) const { return List(IndexOf(head)); }
  uint32_t CountOf(uint32_t head) const { return count.Of(IndexOf(head)); }
};

// Which positions a layer's slots hold: those of the first n_kept are listed,
// the rest count up. By itself: slot and position are the same. Slots are counted from
// `first` on, which is 0 but for jobs of a chunk.
struct SlotPositions {
  const int32_t* kept = nullptr;  // [n_lists, n_kept.most], ascending per list
  ListCounts n_kept;
  uint32_t n_lists = 1;
  uint32_t tail_position = 0;  // of slot n_kept
  uint32_t first = 0;

  int32_t PositionOf(uint32_t list, uint32_t slot) const;
  // The slot of `position` among n_tokens, or -1.
  int64_t SlotOf(uint32_t list, int32_t position, uint32_t n_tokens) const;
  // The first of n_tokens slots from `position` on, or n_tokens.
  uint32_t FirstFrom(uint32_t list, uint32_t position, uint32_t n_tokens) const;
  // How many of n_tokens slots hold their own number before the first that does not.
  uint32_t PrefixOf(uint32_t list, uint32_t n_tokens) const;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_KEEP_LISTS_H_
