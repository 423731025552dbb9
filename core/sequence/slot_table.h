// The slots that every layer has in use, and the positions that they hold.
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

// The slots of one layer: first `n_kept` survivors of the last eviction, whose
// positions are listed, then the tokens appended since, whose positions count
// up.
struct LayerSlots {
  uint32_t stored = 0;         // slots in use by the longest list
  uint32_t n_kept = 0;         // listed ones in the longest list
  uint32_t n_kept_in_row = 0;  // last listed ones without gaps
  uint32_t tail_position = 0;  // position of the first unlisted slot
  size_t kept_offset = 0;      // where the lists [n_lists, n_kept] begin
  bool is_ragged = false;      // lists have different lengths
  bool is_merged = false;      // any row may have been merged
};

class SlotTable {
 public:
  static constexpr uint32_t kNotEdited = UINT32_MAX;

  explicit SlotTable(const Plan& plan);  // must outlive this

  Status Allocate();
  Status CheckAppend(uint32_t n_tokens) const;
  uint32_t Longest() const;  // slots in use by the longest layer
  Status Append(Stream stream, uint32_t n_tokens);
  // Counts tokens that the device has counted already.
  void CountAppended(uint32_t n_tokens);
  // Cuts to a logical length. May wait for the device.
  Status CheckTrim(Stream stream, uint32_t new_length) const;
  Status Trim(Stream stream, uint32_t new_length);
  // The state after exactly n_tokens were appended.
  Status Restart(Stream stream, uint32_t n_tokens);
  // Sets the slots to the positions of all layers, which have been checked.
  // Rows of positions from `edited_from` on were computed with other text.
  Status Fill(Stream stream, std::span<const LayerPositions> layers,
              uint32_t logical, uint32_t edited_from = kNotEdited);
  // MakeRoomFor() allocates what CopyFrom() needs to copy another table of the
  // plan.
  Status MakeRoomFor(const SlotTable& other) {
    return kept_.Grow(other.kept_.capacity);
  }
  Status CopyFrom(Stream stream, const SlotTable& other);

  uint32_t logical_length() const { return logical_; }
  // The first position whose row was computed with other tokens before it, or
  // kNotEdited.
  uint32_t edited_from() const { return edited_from_; }
  const LayerSlots& operator[](uint32_t layer) const { return layers_[layer]; }
  // How many last tokens every list of a layer holds at least. They may hold
  // more.
  uint32_t CountInRow(uint32_t layer) const {
    const LayerSlots& l = layers_[layer];
    return l.stored - l.n_kept + l.n_kept_in_row;
  }
  // Slots in use per list, in device memory and in host memory.
  ListCounts DeviceTokens(uint32_t layer) const;
  ListCounts HostTokens(uint32_t layer) const;
  // u32 [lists, 2] of all layers in device memory; NULL with policy none.
  const uint32_t* lengths() const { return lengths_.data(); }
  const uint32_t* LengthsOf(uint32_t layer) const {
    return lengths_.data() == nullptr ? nullptr
                                      : lengths_.data() + 2 * FirstList(layer);
  }

  // A layer's positions, in device memory.
  SlotPositions DevicePositions(uint32_t layer) const;
  // The same in host memory. Waits for the device if that has evicted since.
  Status HostPositions(Stream stream, uint32_t layer, SlotPositions* out) const;
  // The number of first tokens that every list holds in their original slots,
  // as they were computed. May wait likewise.
  Status ExactPrefix(Stream stream, uint32_t* out) const;

  // ---- For an eviction, in this order ----

  // Ragged plans: where to write how many slots each list of a layer keeps.
  std::span<uint32_t> NextCounts(uint32_t layer) const;
  // LeaveCounts() writes that a layer loses nothing, CopyCounts() that it is
  // like another.
  void LeaveCounts(uint32_t layer) const;
  void CopyCounts(uint32_t from, uint32_t layer) const;
  // Sends the counts to the device.
  Status SendNextCounts(Stream stream) const;
  // Reads the counts that the device has computed. Waits.
  Status ReadNextCounts(Stream stream) const;
  // The place to which the device writes the counts of a layer.
  uint32_t* DeviceNextCounts(uint32_t layer) const;
  // The counts as operations need them. No list keeps more than `most`.
  ListCounts DeviceNext(uint32_t layer, uint32_t most) const;
  ListCounts HostNext(uint32_t layer, uint32_t most) const;
  // Records the eviction on device and host. `layers` has one outcome per
  // layer, in order. The last n_in_row slots of layers that lose tokens stay.
  Status Commit(Stream stream, std::span<const LayerOutcome> layers,
                uint32_t n_in_row);

  // ---- To undo an eviction ----

  // Remembers the current state, before a Commit() of these outcomes.
  void Remember(std::span<const LayerOutcome> layers);
  void Forget() { remembers_ = false; }
  bool remembers() const { return remembers_; }
  uint32_t length_before() const { return logical_before_; }
  // How many slots the list that lost most has lost, and the first layer with
  // the same cache.
  uint32_t EvictedOf(uint32_t layer) const { return before_[layer].n_evicted; }
  uint32_t OwnerBefore(uint32_t layer) const { return before_[layer].owner; }
  // Exchanges the current and the remembered state on the host. Both include
  // the tokens appended since.
  void Exchange();
  // Sends the exchanged state to the device.
  Status SendExchanged(Stream stream);

 private:
  // Positions of survivors. An eviction reads one array and writes the other.
  struct Kept {
    explicit Kept(const Context& context)
        : context(context),
          of{DeviceArray<int32_t>(context), DeviceArray<int32_t>(context)},
          host(context) {}
    // If the room is too small the content is lost.
    Status Grow(CheckedSize n);
    void Swap(Kept& other);

    const Context& context;
    DeviceArray<int32_t> of[2];
    Array<int32_t> host;  // the host's copy, unless the device is the host
    size_t capacity = 0;
  };

  // The most positions that an eviction may list.
  CheckedSize KeptByPlan() const;
  LayerSlots SlotsOf(uint32_t layer, const LayerPositions& positions,
                     uint32_t logical) const;
  // Writes the new state of Fill() beside the current one.
  Status Send(Stream stream, std::span<const LayerPositions> layers,
              std::span<const LayerSlots> next, uint32_t logical,
              size_t n_listed, const Kept& kept);
  uint32_t n_lists(uint32_t layer) const { return plan_.layer(layer).n_lists; }
  size_t FirstList(uint32_t layer) const {
    return plan_.layer(layer).first_list;
  }
  bool AreUneven(uint32_t layer) const;
  // The layer with the highest listed position.
  uint32_t LastEvicted() const;
  // Sends the lengths in stored_ to the device. On failure stored_ is again
  // what the layers say.
  Status SendLengths(Stream stream, uint32_t logical);
  void CountStored();

  const Plan& plan_;
  uint32_t logical_ = 0;
  uint32_t edited_from_ = kNotEdited;
  Array<LayerSlots> layers_;
  Array<uint32_t> stored_;         // [lists]
  DeviceArray<uint32_t> lengths_;  // [lists, 2]
  Kept kept_;
  Array<MapJob> maps_;  // of a commit
  // Ragged plans: how many positions of each list are listed. One array is
  // current, the other is for the next eviction.
  DeviceArray<uint32_t> device_counts_[2];
  Array<uint32_t> counts_[2];
  int now_ = 0;          // index of the current one
  size_t n_listed_ = 0;  // elements of positions in use
  // The state before the last eviction, as long as `kept_` has both.
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
