// A pool of blocks: see kvevict_paged_cache.
#ifndef KVEVICT_CORE_PAGED_PAGED_CACHE_H_
#define KVEVICT_CORE_PAGED_PAGED_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/memory/device_array.h"
#include "core/mutex.h"
#include "core/plan/plan.h"
#include "core/status.h"
#include "core/view/view.h"
#include "kvevict/paged.h"

namespace kvevict {

// The pool. Its counters are read and written under its lock.
class PagedCache {
 public:
  // The blocks of like layers.
  struct Group {
    // The view of a sequence's layer, without its table. Blocks of a plane are
    // contiguous.
    kvevict_view view;
    // Companions: scales and minima, or the biases of rows that have neither.
    kvevict_plane numbers[4];
    // K and V of recent rows, after the first of a sequence's layer; 0 if all
    // rows are in blocks.
    kvevict_plane recent[2];
    size_t recent_bytes;  // of one layer of a sequence
    uint32_t n_layers;
    uint32_t n_blocks;
    uint32_t n_free;
    uint32_t n_shared;
    uint32_t n_wanted;
    int32_t* free;      // [n_blocks]; the first n_free are valid
    uint32_t* holders;  // [n_blocks]
  };

  static Status FindBytes(const Plan& plan,
                          const kvevict_paged_cache_options& options,
                          size_t* out);
  static Status Create(const Plan& plan,
                       const kvevict_paged_cache_options& options,
                       PagedCache** out);
  explicit PagedCache(const Plan& plan);

  void Ref() const { n_refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() const;

  const Plan& plan() const { return *plan_; }
  const Context& context() const { return plan_->context(); }
  uint32_t block_size() const { return block_size_; }
  // The most rows of a sequence's layer that are not quantized.
  uint32_t most_recent() const { return most_recent_; }
  // See RowsStandAlone().
  bool rows_stand_alone() const { return rows_stand_alone_; }
  // The number of n_slots that belong in blocks, if n_coded of them are there
  // already.
  uint32_t CodedOf(uint32_t n_coded, uint32_t n_slots) const {
    if (most_recent_ == 0) return n_slots;
    if (n_slots - n_coded <= most_recent_) return n_coded;
    const uint32_t n = n_slots - least_recent_;
    return n - n % block_size_;
  }
  uint32_t BlocksFor(uint32_t n_slots) const {
    return n_slots / block_size_ + (n_slots % block_size_ != 0);
  }
  // Calls visit(plane, bytes of a block) for K, V, and their scales and minima.
  template <typename Visit>
  static void ForEachBlockOf(const Group& group, const Visit& visit) {
    ForEachPlane(group.view, [&](const kvevict_plane& plane) {
      visit(plane, static_cast<size_t>(plane.block_stride_bytes));
    });
  }
  Group& GroupOf(uint32_t layer) const { return groups_[group_of_[layer]]; }
  // Slots 0, 1, ... up to max_tokens, in device memory.
  int32_t* slots() const { return slots_.data(); }
  const uint8_t* memory() const { return memory_; }
  size_t n_bytes() const { return n_bytes_; }
  // Bytes of the recent rows of a sequence.
  size_t recent_bytes() const { return recent_bytes_; }
  void FillUsage(kvevict_paged_cache_usage* out) const;

  // Holds the lock. It begins with no blocks wanted.
  class Lock {
   public:
    explicit Lock(const PagedCache& cache);

   private:
    const MutexLock lock_;
  };
  void Want(uint32_t layer, uint32_t n) const { GroupOf(layer).n_wanted += n; }
  // Checks that as many blocks are free as are wanted.
  Status CheckWanted() const;
  bool IsShared(uint32_t layer, int32_t block) const {
    return GroupOf(layer).holders[block] > 1;
  }
  int32_t Take(uint32_t layer) const;
  void Share(uint32_t layer, int32_t block) const;
  void Release(uint32_t layer, int32_t block) const;
  void CountSequence(int32_t n) const { n_sequences_ += n; }
  void CountSlots(int64_t n) const { n_slots_ += n; }

 private:
  struct Layout;
  ~PagedCache() = default;
  Status Allocate(const kvevict_paged_cache_options& options);

  const Retained<Plan> plan_;
  uint32_t block_size_ = 0;
  uint32_t least_recent_ = 0;
  uint32_t most_recent_ = 0;
  bool rows_stand_alone_ = true;
  Array<Group> groups_;
  Array<uint32_t> group_of_;  // [n_layers]
  Array<int32_t> free_;       // of all groups
  Array<uint32_t> holders_;   // of all groups
  DeviceArray<uint8_t> own_memory_;
  const uint8_t* memory_ = nullptr;
  size_t n_bytes_ = 0;
  size_t recent_bytes_ = 0;
  DeviceArray<int32_t> slots_;
  mutable Mutex mutex_;
  mutable uint32_t n_sequences_ = 0;
  mutable uint64_t n_slots_ = 0;
  mutable std::atomic<uint32_t> n_refs_{1};
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_PAGED_PAGED_CACHE_H_
