// The blocks of paged caches by number, to tell whether two caches have blocks
// at a given distance.
#ifndef KVEVICT_CORE_VIEW_BLOCK_NUMBERS_H_
#define KVEVICT_CORE_VIEW_BLOCK_NUMBERS_H_

#include <cstdint>
#include <span>

#include "core/evict/keep_lists.h"
#include "kvevict/kvevict.h"

namespace kvevict {

struct LayerCache;

// The block tables of a paged view: one for all KV heads, or one for each.
// Without tables entry i is block i.
class BlockTables {
 public:
  BlockTables() = default;
  // `tokens` is per head, in host memory. Entries before that of first_slot are
  // not in use, except in a ring.
  BlockTables(const kvevict_view& view, const ListCounts& tokens,
              uint32_t first_slot = 0)
      : entries_(view.block_table),
        stride_(view.block_table_head_stride),
        n_tables_(stride_ == 0 ? 1 : view.n_kv_heads),
        block_size_(view.block_size),
        first_slot_(first_slot),
        n_skipped_(first_slot / view.block_size),
        tokens_(tokens) {
    if (view.ring_slots == 0 || tokens.most <= first_slot) return;
    first_slot_ = n_skipped_ = 0;
    tokens_ = view.ring_slots;
  }

  uint32_t n_tables() const { return n_tables_; }
  // The entries in use. A table for all heads serves the longest.
  uint64_t Used(uint32_t table) const {
    return BlocksFor(n_tables_ == 1 ? tokens_.most : tokens_.Of(table));
  }
  uint64_t MostUsed() const { return BlocksFor(tokens_.most); }
  // The number of elements that contain all entries in use.
  uint64_t ExtentOf() const {
    return stride_ * (n_tables_ - 1) + n_skipped_ + MostUsed();
  }
  int32_t Entry(uint32_t table, uint64_t i) const {
    return At(table * stride_ + n_skipped_ + i);
  }
  int32_t At(uint64_t place) const {
    return entries_ == nullptr ? static_cast<int32_t>(place) : entries_[place];
  }
  bool SameEntries(const BlockTables& other) const {
    return entries_ == other.entries_ && stride_ == other.stride_ &&
           n_skipped_ == other.n_skipped_;
  }

  // Calls visit(index among the view's elements, id) until one returns false.
  template <typename Visit>
  bool ForEachUsed(const Visit& visit) const {
    for (uint32_t table = 0; table < n_tables_; ++table) {
      const uint64_t begin = table * stride_ + n_skipped_;
      const uint64_t end = begin + Used(table);
      for (uint64_t i = begin; i < end; ++i) {
        if (!visit(i, At(i))) return false;
      }
    }
    return true;
  }

 private:
  uint64_t BlocksFor(uint32_t n_tokens) const {
    if (n_tokens <= first_slot_) return 0;
    return (uint64_t{n_tokens} + block_size_ - 1) / block_size_ - n_skipped_;
  }

  const int32_t* entries_ = nullptr;
  uint64_t stride_ = 0;
  uint32_t n_tables_ = 1;
  uint32_t block_size_ = 1;
  uint32_t first_slot_ = 0;
  uint32_t n_skipped_ = 0;
  ListCounts tokens_;
};

// The blocks of a plane in use, numbered in ascending addresses: by id, or by
// minus the id if the block stride is negative. Without blocks there is one
// number, 0.
class BlockNumbers {
 public:
  BlockNumbers() = default;
  // Ids are in [lowest, highest].
  BlockNumbers(const BlockTables& tables, int32_t lowest, int32_t highest,
               bool downwards);

  int32_t first() const { return first_; }
  int32_t last() const { return last_; }
  // The number of blocks as if every head were as long as the longest. Those
  // that a shorter head lacks repeat the first one.
  uint64_t size() const { return tables_.n_tables() * per_table_; }
  int32_t operator[](uint64_t i) const {
    if (tables_.n_tables() == 1) return sign_ * tables_.Entry(0, i);
    const auto table = static_cast<uint32_t>(i / per_table_);
    const uint64_t entry = i % per_table_;
    if (entry >= tables_.Used(table)) return first_;
    return sign_ * tables_.Entry(table, entry);
  }
  bool SameTable(const BlockNumbers& other) const {
    return tables_.SameEntries(other.tables_) && sign_ == other.sign_;
  }
  bool SameDirection(const BlockNumbers& other) const {
    return sign_ == other.sign_;
  }

 private:
  BlockTables tables_;
  uint64_t per_table_ = 0;
  int32_t sign_ = 1;
  int32_t first_ = 0;
  int32_t last_ = 0;
};

// Up to kCapacity numbers in an open hash table on the stack, since the calls
// that need it have no other memory.
class NumberSet {
 public:
  static constexpr uint64_t kCapacity = 2048;

  // The numbers of blocks from `begin` on.
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
  static constexpr int32_t kEmpty = INT32_MIN;  // never a number

  static uint32_t SlotOf(int32_t number) {
    return static_cast<uint32_t>(number) * 0x9E3779B1u /
           (UINT32_MAX / kSlots + 1);
  }

  int32_t slots_[kSlots];
};

// Answers questions about the blocks of a model's layers.
class LayersOfBlocks {
 public:
  explicit LayersOfBlocks(std::span<const LayerCache> layers)
      : layers_(layers) {}

  // Whether some number of `a` minus some number of `b` is `difference`. Cost:
  // a pass over both. For difference 0 between layers of one pool it is usually
  // free.
  bool AnyApartBy(const BlockNumbers& a, const BlockNumbers& b,
                  int64_t difference);

  // Whether it is known that no id is in two of the tables or twice in one.
  // Then ids are in [lowest(), highest()].
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

#endif  // KVEVICT_CORE_VIEW_BLOCK_NUMBERS_H_
