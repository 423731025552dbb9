// Edits a sequence in the middle: tokens are removed, inserted or moved, and
// the rows, keys and positions of the others follow.
#ifndef KVEVICT_CORE_SEQUENCE_EDIT_H_
#define KVEVICT_CORE_SEQUENCE_EDIT_H_

#include <cstdint>
#include <span>

#include "core/backend.h"
#include "core/memory/device_array.h"
#include "core/sequence/layer_positions.h"
#include "core/sequence/sequence.h"
#include "core/status.h"
#include "kvevict/edit.h"

namespace kvevict {

// Maps old positions to new ones: runs of old positions in their new order. A
// run of new tokens has no old positions.
class PositionMap {
 public:
  struct Run {
    uint32_t from;  // first old position
    uint32_t end;   // one past the last one
    uint32_t to;    // first new position
    uint32_t n_new = 0;
  };

  // Checks the edit of a sequence of `logical` tokens.
  Status Set(const kvevict_edit& edit, uint32_t logical);

  std::span<const Run> runs() const { return {runs_, n_runs_}; }
  uint32_t logical_after() const { return logical_; }
  uint32_t n_new() const { return n_new_; }
  // The first position that may hold another token than before.
  uint32_t first_changed() const { return first_changed_; }
  // The first position whose row was computed with other tokens before it.
  // `before` is the same before the edit.
  uint32_t EditedFrom(uint32_t before) const;
  // The length of a prompt of n tokens after the edit.
  uint32_t PromptOf(uint32_t n) const;

 private:
  Status SetReplacement(const kvevict_edit& edit, uint32_t logical);
  Status SetMove(const kvevict_edit& edit, uint32_t logical);
  void Add(const Run& run);

  Run runs_[4];
  uint32_t n_runs_ = 0;
  uint32_t logical_ = 0;
  uint32_t n_new_ = 0;
  uint32_t first_changed_ = 0;
  uint32_t first_inexact_ = 0;
  // What is replaced, if tokens behind it move.
  uint32_t replaced_from_ = UINT32_MAX;
  uint32_t replaced_end_ = UINT32_MAX;
};

// One edit, in three steps. Nothing changes before Run().
class SequenceEdit {
 public:
  explicit SequenceEdit(Sequence& sequence);

  // Finds which rows lists have in which slots afterwards. May wait.
  Status Prepare(const kvevict_edit& edit);
  // The slots of a layer's longest list before or afterwards, and the first
  // slot of any list whose row changes.
  uint32_t RoomOf(uint32_t layer) const { return layers_[layer].n_room; }
  uint32_t FirstChanged(uint32_t layer) const { return layers_[layer].first; }
  uint32_t n_new() const { return map_.n_new(); }
  // The first slot of a KV head that gets a new row.
  uint32_t FirstNew(uint32_t layer, uint32_t head) const;
  // Checks the views of the sequence's call, which have that room, and prepares
  // all that may fail.
  Status Ready();
  Status Run();

 private:
  struct Layer {
    size_t words = 0;       // where its words begin
    uint32_t n_lists = 1;   // 1 if no token was evicted
    uint32_t n_room = 0;    // most slots of a list before or afterwards
    uint32_t n_after = 0;   // slots of the longest list afterwards
    uint32_t n_moved = 0;   // slots up to the last one whose row moves
    uint32_t first = 0;     // the first slot whose row changes
    bool is_whole = false;  // no token was evicted
    bool rotates = false;   // some keys rotate
    bool ascends = true;    // rows only move down
  };
  struct Move {
    kvevict_view view;
    MoveJob job;
    bool ascends = false;
  };
  // The words of a layer. The first three are [n_lists, n_after]: slots from
  // which rows come, offsets by which keys rotate, and positions. The others
  // are [n_lists]: slots with room, those held afterwards, and those up to the
  // last row that moves.
  enum Part : uint32_t { kSlots, kOffsets, kPositions, kRoom, kAfter, kMoved };

  static size_t Begin(const Layer& layer, Part part) {
    const size_t n = size_t{layer.n_lists} * layer.n_after;
    if (part <= kRoom) return layer.words + part * n;
    return layer.words + kRoom * n + (part - kRoom) * size_t{layer.n_lists};
  }
  uint32_t* Counts(const Layer& layer, Part part) const {
    return reinterpret_cast<uint32_t*>(host_.data() + Begin(layer, part));
  }
  static ListCounts CountsOf(const Layer& layer, const int32_t* words,
                             Part part, uint32_t most);
  static bool Changes(const Layer& layer) {
    return layer.n_moved > 0 || layer.rotates;
  }
  bool RotatesKeys() const;
  RotateArgs Rotations() const {
    const std::span<const RotateJob> all(rotations_.data(), n_rotations_);
    return {Jobs<RotateJob>(all), plan_.rope()};
  }
  Status Measure();
  Status Fill(uint32_t l);
  void FillList(Layer& layer, uint32_t list, const SlotPositions& positions,
                uint32_t n_tokens);
  Status CheckViews();
  Status CheckLayer(uint32_t l) const;
  Status MakeMoves(const int32_t* words);
  Status MakeRotations(const int32_t* words);
  Status MoveRows();
  Status ClearSums(uint32_t l, uint32_t logical);
  void ForgetQueries();

  Sequence& sequence_;
  const Plan& plan_;
  const Context& context_;
  kvevict_edit edit_;
  PositionMap map_;
  Positions positions_;
  Array<Layer> layers_;
  Array<int32_t> host_;
  DeviceArray<int32_t> device_;  // a copy, if the device is not the host
  DeviceArray<uint8_t> scratch_;
  size_t scratch_bytes_ = 0;
  DeviceArray<float> zeros_;  // [n_new], for sums
  Array<Move> moves_;
  size_t n_moves_ = 0;
  Array<RotateJob> rotations_;
  size_t n_rotations_ = 0;
  uint32_t n_sums_ = 0;  // layers whose sums follow
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_EDIT_H_
