// Positions that a sequence is to start from, as the caller or a saved one lists them.
#ifndef KVEVICT_CORE_SEQUENCE_LAYER_POSITIONS_H_
#define KVEVICT_CORE_SEQUENCE_LAYER_POSITIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/plan/plan.h"
#include "core/status.h"

namespace kvevict {

// Ascending positions, in host memory: of the slots of a list.
using PositionList = std::span<const int32_t>;

// What the slots of a layer are to hold.
struct LayerPositions {
  std::span<PositionList> lists;
  // From here on every list has all positions, listed or not.
  uint32_t tail_position = 0;
  bool is_merged = false;     // rows may have been changed
  uint32_t prompt_slots = 0;  // see Prompt::SlotsOf()

  // Those before the tail.
  PositionList Listed(uint32_t list) const;
};

// Of all layers of a plan.
class Positions {
 public:
  explicit Positions(const Context& context)
      : layers_(context), lists_(context) {}

  // Empty lists.
  Status Allocate(const Plan& plan);
  std::span<LayerPositions> layers() const {
    return {layers_.data(), layers_.size()};
  }

 private:
  Array<LayerPositions> layers_;
  Array<PositionList> lists_;
};

// How many of a list's last positions are without gaps, up to `end`.
uint32_t CountInRow(PositionList list, uint32_t end);

// Where the tail of a layer can begin when `logical` tokens have been seen. Every list
// has a token before it, unless that is 0.
uint32_t FindTail(const LayerPositions& layer, uint32_t logical);

Status CheckPositions(const Plan& plan, std::span<const LayerPositions> layers,
                      uint32_t logical);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SEQUENCE_LAYER_POSITIONS_H_
