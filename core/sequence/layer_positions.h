// The positions that a sequence starts from, given by the caller or read from a
// saved sequence.
#ifndef KVEVICT_CORE_SEQUENCE_LAYER_POSITIONS_H_
#define KVEVICT_CORE_SEQUENCE_LAYER_POSITIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// The ascending positions of a list's slots, in host memory.
using PositionList = std::span<const int32_t>;

// The positions that the slots of one layer will hold.
struct LayerPositions {
  std::span<PositionList> lists;
  // Every list has all positions from this one on, listed or not.
  uint32_t tail_position = 0;
  bool is_merged = false;     // rows may have been merged
  uint32_t prompt_slots = 0;  // see Prompt::SlotsOf()

  // The positions of a list before the tail.
  PositionList Listed(uint32_t list) const;
};

// The positions of all layers of a plan.
class Positions {
 public:
  explicit Positions(const Context& context)
      : layers_(context), lists_(context) {}

  // Allocates empty lists.
  Status Allocate(const Plan& plan);
  std::span<LayerPositions> layers() const {
    return {layers_.data(), layers_.size()};
  }

 private:
  Array<LayerPositions> layers_;
  Array<PositionList> lists_;
};

// The number of last positions of a list that have no gaps between them and
// `end`.
uint32_t CountInRow(PositionList list, uint32_t end);

// The first position at which a layer's tail can begin after `logical` tokens.
// Every list has a token before it, unless it is 0.
uint32_t FindTail(const LayerPositions& layer, uint32_t logical);

Status CheckPositions(const Plan& plan, std::span<const LayerPositions> layers,
                      uint32_t logical);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_LAYER_POSITIONS_H_
