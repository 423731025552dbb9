// Which slots survive, and which position a slot holds.
#ifndef KVEVICT_CORE_KEEP_LISTS_H_
#define KVEVICT_CORE_KEEP_LISTS_H_

#include <cstdint>

namespace kvevict {

// Slots to keep of one layer, in memory of the device: a list for all KV heads, or
// one for each.
struct KeepLists {
  int32_t* slots = nullptr;  // [n_lists, count]
  uint32_t n_lists = 1;
  uint32_t count = 0;

  int32_t* List(uint32_t list) const { return slots + uint64_t{list} * count; }
  // The list of a KV head.
  int32_t* ListOf(uint32_t head) const { return List(n_lists == 1 ? 0 : head); }
};

// Which positions a layer's slots hold: those of the first n_kept are listed,
// the rest count up. By itself: slot and position are the same.
struct SlotPositions {
  const int32_t* kept = nullptr;  // [n_lists, n_kept], ascending per list
  uint32_t n_kept = 0;
  uint32_t n_lists = 1;
  uint32_t tail_position = 0;  // of slot n_kept

  int32_t PositionOf(uint32_t list, uint32_t slot) const;
  // The slot of `position` among n_tokens, or -1.
  int64_t SlotOf(uint32_t list, int32_t position, uint32_t n_tokens) const;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_KEEP_LISTS_H_
