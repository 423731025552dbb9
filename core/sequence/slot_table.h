// Which slots every layer has in use, and which positions they hold.
#ifndef KVEVICT_CORE_SEQUENCE_SLOT_TABLE_H_
#define KVEVICT_CORE_SEQUENCE_SLOT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/evict/layer_eviction.h"
#include "core/memory/device_array.h"
#include "core/plan/plan.h"
#include "core/sequence/layer_positions.h"
#include "core/status.h"

namespace kvevict {

// The slots of one layer: `n_kept` survivors of the last eviction, whose
// positions are listed, then tokens appended since, whose positions count up.
struct LayerSlots {
  uint32_t stored = 0;         // slots in use; of any list, the most
  uint32_t n_kept = 0;         // of them listed; likewise
  uint32_t n_kept_in_row = 0;  // the last ones listed are without gaps
  uint32_t tail_position = 0;  // position of the first one that is not
  size_t kept_offset = 0;      // of the lists, [n_lists, n_kept]
  bool is_ragged = false;      // lists have counts of their own
  bool is_merged = false;      // rows are not what was stored, any of them
};

class SlotTable {
 public:
  explicit SlotTable(const Plan& plan);  // which must stay

  Status Allocate();
  Status CheckAppend(uint32_t n_tokens) const;
  uint32_t Longest() const;  // slots in use by the layer that has most
  Status Append(Stream stream, uint32_t n_tokens);
  // The device has counted them already.
  void CountAppended(uint32_t n_tokens);
  // Back to a logical length; may wait for the device.
  Status CheckTrim(Stream stream, uint32_t new_length) const;
  Status Trim(Stream stream, uint32_t new_length);
  // As if so many tokens had been appended, and that were all.
  Status Restart(Stream stream, uint32_t n_tokens);
  // As the positions of all layers say, which have been checked.
  Status Fill(Stream stream, std::span<const LayerPositions> layers,
              uint32_t logical);
  // Room for what another table of the plan has, and then that.
  Status MakeRoomFor(const SlotTable& other) {
    return kept_.Grow(other.kept_.capacity);
  }
  Status CopyFrom(Stream stream, const SlotTable& other);

  uint32_t logical_length() const { return logical_; }
  const LayerSlots& operator[](uint32_t layer) const { return layers_[layer]; }
  // Slots in use, per list; in memory of the device, and of the host.
  ListCounts DeviceTokens(uint32_t layer) const;
  ListCounts HostTokens(uint32_t layer) const;
  // u32 [lists, 2] of all layers; NULL with policy none. Device memory.
  const uint32_t* lengths() const { return lengths_.data(); }
  const uint32_t* LengthsOf(uint32_t layer) const {
    return lengths_.data() == nullptr ? nullptr
                                      : lengths_.data() + 2 * FirstList(layer);
  }

  // Of a layer, in device memory.
  SlotPositions DevicePositions(uint32_t layer) const;
  // The same in host memory; waits for the device where that has evicted since.
  Status HostPositions(Stream stream, uint32_t layer, SlotPositions* out) const;
  // Tokens that every list holds where they were stored; waits likewise.
  Status ExactPrefix(Stream stream, uint32_t* out) const;

  // ---- For an eviction, in this order ----

  // Of a ragged plan: where to write how many slots each list of a layer keeps.
  std::span<uint32_t> NextCounts(uint32_t layer) const;
  // Writes that a layer loses nothing, or is like another.
  void LeaveCounts(uint32_t layer) const;
  void CopyCounts(uint32_t from, uint32_t layer) const;
  // Brings them to the device.
  Status SendNextCounts(Stream stream) const;
  // Brings back what the device has made of them; waits.
  Status ReadNextCounts(Stream stream) const;
  // Where the device writes those of a layer.
  uint32_t* DeviceNextCounts(uint32_t layer) const;
  // As operations need them; `most` of any list.
  ListCounts DeviceNext(uint32_t layer, uint32_t most) const;
  ListCounts HostNext(uint32_t layer, uint32_t most) const;
  // Records the eviction on device and host: one per layer, in order. Of those that
  // lose tokens the last n_in_row stay.
  Status Commit(Stream stream, std::span<LayerOutcome> layers,
                uint32_t n_in_row);

  // ---- Back to before it ----

  // Notes what is, before a Commit() of these outcomes.
  void Remember(std::span<const LayerOutcome> layers);
  void Forget() { remembers_ = false; }
  bool remembers() const { return remembers_; }
  uint32_t length_before() const { return logical_before_; }
  // What a layer lost: of any list, the most; and the first layer with its cache.
  uint32_t EvictedOf(uint32_t layer) const { return before_[layer].n_evicted; }
  uint32_t OwnerBefore(uint32_t layer) const { return before_[layer].owner; }
  // On the host what is and what was change places; to both belongs what was appended
  // since.
  void Exchange();
  // Tells the device.
  Status SendExchanged(Stream stream);

 private:
  // Positions of survivors. An eviction reads one array and writes the other.
  struct Kept {
    explicit Kept(const Context& context)
        : context(context),
          of{DeviceArray<int32_t>(context), DeviceArray<int32_t>(context)},
          host(context) {}
    // What they hold is lost where there is not room enough.
    Status Grow(CheckedSize n);
    void Swap(Kept& other);

    const Context& context;
    DeviceArray<int32_t> of[2];
    Array<int32_t>
        host;  // what the host has read, where that is not the device
    size_t capacity = 0;
  };

  // What an eviction may leave behind.
  CheckedSize KeptByPlan() const;
  LayerSlots SlotsOf(uint32_t layer, const LayerPositions& positions,
                     uint32_t logical) const;
  // What Fill() writes beside what is current.
  Status Send(Stream stream, std::span<const LayerPositions> layers,
              std::span<const LayerSlots> next, uint32_t logical,
              size_t n_listed, const Kept& kept);
  uint32_t n_lists(uint32_t layer) const { return plan_.layer(layer).n_lists; }
  size_t FirstList(uint32_t layer) const {
    return plan_.layer(layer).first_list;
  }
  bool AreUneven(uint32_t layer) const;
  // The layer that has listed positions up to the highest one.
  uint32_t LastEvicted() const;
  // Lengths to the device: those in stored_, which after a failure are again what
  // the layers say.
  Status SendLengths(Stream stream, uint32_t logical);
  void CountStored();

  const Plan& plan_;
  uint32_t logical_ = 0;
  Array<LayerSlots> layers_;
  Array<uint32_t> stored_;         // of all lists
  DeviceArray<uint32_t> lengths_;  // [lists, 2]
  Kept kept_;
  // Of a ragged plan: how many of each list are listed; the other has those of the
  // next eviction.
  DeviceArray<uint32_t> device_counts_[2];
  Array<uint32_t> counts_[2];
  int now_ = 0;          // which of them are valid
  size_t n_listed_ = 0;  // elements of positions in use
  // Before the last eviction, as long as `kept_` has both.
  struct LayerBefore {
    LayerSlots slots;
    uint32_t n_evicted = 0;
    uint32_t owner = 0;
  };
  Array<LayerBefore> before_;
  Array<uint32_t> counts_before_;
  size_t n_listed_before_ = 0;
  uint32_t logical_before_ = 0;
  bool remembers_ = false;
  mutable bool host_kept_is_current_ = true;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_SLOT_TABLE_H_
