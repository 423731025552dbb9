// The blocks of one request: see kvevict_paged_sequence.
#ifndef KVEVICT_CORE_PAGED_PAGED_SEQUENCE_H_
#define KVEVICT_CORE_PAGED_PAGED_SEQUENCE_H_

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/memory/device_array.h"
#include "core/paged/paged_cache.h"
#include "core/parts.h"
#include "core/status.h"

namespace kvevict {

// Rows outside the cache; see kvevict_paged_rows.
struct PagedRows {
  uint32_t layer;  // index in the plan
  uint32_t first_slot;
  uint32_t n_tokens;
  kvevict_plane k, v;
};

class PagedSequence {
 public:
  static Status Create(const PagedCache& cache, PagedSequence** out);
  explicit PagedSequence(const PagedCache& cache);
  ~PagedSequence();
  void Destroy();

  const PagedCache& cache() const { return *cache_; }
  uint32_t length(uint32_t layer) const { return lengths_[layer]; }
  // The number of last ones that are not quantized and in no block.
  uint32_t n_recent(uint32_t layer) const { return n_recent_[layer]; }
  kvevict_view View(uint32_t layer) const;
  // The number of a layer's blocks up to the last one that others hold too.
  uint32_t CountShared(uint32_t layer) const;

  Status Fork(Stream stream, PagedSequence** out) const;
  Status Append(uint32_t n_tokens, Stream stream);
  // Grows layers to at least `n_slots`, all of them in blocks, and owns the
  // blocks of slots from `first` on.
  struct Room {
    uint32_t first;
    uint32_t n_slots;
  };
  Status MakeRoom(std::span<const Room> layers, Stream stream);
  // Shrinks a layer to its first n_slots or what it holds.
  void Shrink(uint32_t layer, uint32_t n_slots);
  // Shrinks a layer to what an eviction has left, which ends with all recent
  // rows.
  void ShrinkBeforeRecent(uint32_t layer, uint32_t n_slots);
  // Says how many slots a KV head holds, if that may be fewer than its layer.
  // Its next rows begin there.
  void SetHeld(uint32_t layer, uint32_t head, uint32_t n_slots);
  // Reads the tables that the device has changed.
  Status ReadTables(Stream stream);
  Status Own(uint32_t first_slot, Stream stream);
  Status Write(std::span<const PagedRows> rows, Stream stream);
  Status Read(std::span<const PagedRows> rows, Stream stream) const;

  // Copies blocks that others share, in three steps. Several sequences go
  // through each step together: the first two under the lock, with
  // CheckWanted() between them.
  // WantOwn() is for a layer's blocks with slots [begin, end).
  void WantOwn(uint32_t layer, uint32_t begin, uint32_t end);
  void TakeWanted();
  Status CopyTaken(Stream stream, bool has_grown = false);
  // Gives up after any step, instead of the next.
  void GiveUp();

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kWanted = -2;

  uint32_t n_layers() const { return cache_->plan().n_layers(); }
  int32_t* Table(uint32_t layer) const {
    return tables_.data() + size_t{layer} * table_stride_;
  }
  // Calls visit(layer, entry) for each block that is wanted or taken, until it
  // has seen all.
  template <typename Visit>
  void ForEachReplaced(const Visit& visit) const;
  Status Allocate();
  Status AllocateRecent();
  // 2 for K and V, or 1 without V.
  uint32_t NRecentPlanes(uint32_t layer) const;
  uint32_t NCoded(uint32_t layer) const {
    return lengths_[layer] - n_recent_[layer];
  }
  // Views of a layer's blocks alone and of its recent rows alone.
  kvevict_view CodedView(uint32_t layer) const;
  kvevict_view RecentView(uint32_t layer) const;
  // Moves recent rows before slot n_coded to blocks, which exist, and the
  // others down.
  Status Quantize(uint32_t layer, uint32_t n_coded, Stream stream);
  // The slots that each head of a layer holds.
  uint32_t* Held(uint32_t layer) const {
    return held_.data() + size_t{layer} * held_stride_;
  }
  // The first slot of a row that an append adds. Only biases need it per head.
  uint32_t FirstNew(uint32_t layer) const;
  // False, and known to be, in a build that leaves them out.
  bool has_biases() const { return kHasBiases && held_stride_ > 0; }
  // Clear the biases of rows that an append adds, or whose keys are written.
  Status ClearAppended(uint32_t n_tokens, Stream stream) const;
  Status ClearBiasesOf(std::span<const PagedRows> rows, Stream stream) const;
  void ShrinkTo(uint32_t layer, uint32_t n_coded, uint32_t n_recent);
  // The target or source of rows: the layer, or its recent rows if all of them
  // are there.
  struct Place {
    kvevict_view view;
    uint32_t first_slot;
  };
  Place PlaceOf(const PagedRows& rows) const;
  bool IsApart(const kvevict_plane& plane, uint32_t n_heads,
               uint32_t n_rows) const;
  Status CheckRows(const PagedRows& rows, bool writes_rows,
                   Stream stream) const;
  Status CheckGroups(const PagedRows& rows) const;
  // Copies the tables to the device, unless that is the host.
  Status ShowTables(Stream stream) const;
  // Grows each layer l to n_coded(l) slots in blocks. own(l) marks blocks as
  // wanted, then() runs at the end.
  template <typename Coded, typename WantBlocks, typename Then>
  Status Grow(int64_t n_slots, const Coded& n_coded, const WantBlocks& own,
              const Then& then, Stream stream);
  template <typename Blocks>
  Status Replace(const Blocks& want_blocks, Stream stream);
  Status OwnBlocksOf(std::span<const PagedRows> rows, Stream stream);

  const Retained<PagedCache> cache_;
  uint32_t table_stride_ = 0;
  Array<int32_t> tables_;  // [n_layers, table_stride_]
  // [n_layers, table_stride_]: kNone, kWanted, or the block that the table had
  // until CopyTaken().
  Array<int32_t> replaced_;
  uint32_t n_replaced_ = 0;
  DeviceArray<int32_t> device_tables_;
  DeviceArray<uint8_t> recent_;
  // Companions of each layer's view, if it has recent rows: [n_layers,
  // kMostCompanions], or empty.
  static constexpr uint32_t kMostCompanions = 6;
  Array<kvevict_plane> companions_;
  Array<uint32_t> n_recent_;  // [n_layers]
  // [n_layers, held_stride_], or empty without biases.
  Array<uint32_t> held_;
  uint32_t held_stride_ = 0;  // the most KV heads of a layer
  Array<uint32_t> lengths_;   // [n_layers]
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_PAGED_PAGED_SEQUENCE_H_
