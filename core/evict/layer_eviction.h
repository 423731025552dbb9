// One layer's part in an eviction.
#ifndef KVEVICT_CORE_EVICT_LAYER_EVICTION_H_
#define KVEVICT_CORE_EVICT_LAYER_EVICTION_H_

#include <array>
#include <cstdint>

#include "core/backend.h"

namespace kvevict {

// What an eviction does to one layer.
struct LayerOutcome {
  uint32_t layer = 0;
  uint32_t owner = 0;     // first layer with the same cache
  uint32_t n_tokens = 0;  // slots held by the longest list
  uint32_t n_keep = 0;    // slots that survive in the longest list
  uint32_t budget = 0;    // per list, if heads share it by score
  uint64_t together = 0;  // of all lists, likewise
  // Bit fields, since a sequence has two of these records for each layer.
  uint32_t n_rescued : 30 = 0;  // survivors beyond the budget
  bool loses : 1 = false;       // a list keeps fewer slots than it holds
  bool lacks_room : 1 = false;  // left alone: see LacksRoom()
  KeepLists keep;               // only if it loses
};

// A layer that loses tokens, and its part in each of the operations.
struct LayerEviction : LayerOutcome {
  LayerEviction() = default;
  explicit LayerEviction(const LayerOutcome& outcome) : LayerOutcome(outcome) {}

  ScoreJob score;
  ShapeJob shape;
  ReduceJob reduce;
  RescueJob rescue;
  SelectJob select;
  MoveJob move;
  TableJob table;  // instead of `move` if blocks are dropped
  RotateJob rotate;
};

// The companions of a view that have a role, at most one for each.
using RoleCompanions = std::array<kvevict_plane, KVEVICT_ROLE_BIAS>;

// Saved for a layer that is scored one chunk at a time.
struct ChunkedLayer {
  ScoreJob whole;     // the job for all tokens
  kvevict_view view;  // of the current chunk
  RoleCompanions companions;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_LAYER_EVICTION_H_
