// Blocks of paged caches by number: whether two caches have blocks so far apart.
#ifndef KVEVICT_CORE_BLOCK_NUMBERS_H_
#define KVEVICT_CORE_BLOCK_NUMBERS_H_

#include <cstdint>
#include <span>

#include "kvevict/kvevict.h"

namespace kvevict {

struct LayerCache;

// The blocks of a plane in use, numbered upwards in memory: by their ids, or where the
// block stride is negative by minus their ids. Without blocks the one number is 0.
class BlockNumbers {
 public:
  BlockNumbers() = default;
  // Ids are in [lowest, highest].
  BlockNumbers(const kvevict_view& view, uint32_t n_tokens, int32_t lowest,
               int32_t highest, bool downwards);

  int32_t first() const { return first_; }
  int32_t last() const { return last_; }
  uint64_t size() const { return n_; }
  int32_t operator[](uint64_t i) const { return sign_ * table_[i]; }
  bool SameTable(const BlockNumbers& other) const {
    return table_ == other.table_ && sign_ == other.sign_;
  }
  bool SameDirection(const BlockNumbers& other) const {
    return sign_ == other.sign_;
  }

 private:
  const int32_t* table_ = nullptr;
  uint64_t n_ = 0;
  int32_t sign_ = 1;
  int32_t first_ = 0;
  int32_t last_ = 0;
};

// Up to kCapacity numbers, in an open hash table: calls that ask have no memory but the
// stack.
class NumberSet {
 public:
  static constexpr uint64_t kCapacity = 2048;

  // Those of blocks from `begin` on.
  NumberSet(const BlockNumbers& blocks, uint64_t begin);

  template <typename Int>
  bool Contains(Int number) const {
    if (number <= kEmpty || number > INT32_MAX) return false;
    const auto wanted = static_cast<int32_t>(number);
    uint32_t i = SlotOf(wanted);
    while (slots_[i] != kEmpty && slots_[i] != wanted) i = (i + 1) % kSlots;
    return slots_[i] == wanted;
  }

 private:
  static constexpr uint32_t kSlots = 2 * kCapacity;
  static constexpr int32_t kEmpty = INT32_MIN;  // is no number

  static uint32_t SlotOf(int32_t number) {
    return static_cast<uint32_t>(number) * 0x9E3779B1u /
           (UINT32_MAX / kSlots + 1);
  }

  int32_t slots_[kSlots];
};

// What is asked about the blocks of a model's layers.
class LayersOfBlocks {
 public:
  explicit LayersOfBlocks(std::span<const LayerCache> layers)
      : layers_(layers) {}

  // Whether a number of `a` less one of `b` is `difference`. Cost: a pass over both;
  // for difference 0 between layers of one pool mostly nothing.
  bool AnyApartBy(const BlockNumbers& a, const BlockNumbers& b,
                  int64_t difference);

  // Whether it is known that no id is in two of the tables, or twice in one; then
  // ids are in [lowest(), highest()].
  bool NoneTwice();
  int32_t lowest() const { return lowest_; }
  int32_t highest() const { return highest_; }

 private:
  void FindRange();
  bool FindNoneTwice() const;

  std::span<const LayerCache> layers_;
  bool has_looked_ = false;
  bool none_twice_ = false;
  int32_t lowest_ = INT32_MAX;
  int32_t highest_ = -1;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_BLOCK_NUMBERS_H_
