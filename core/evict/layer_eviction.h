// One layer's part in an eviction.
#ifndef KVEVICT_CORE_EVICT_LAYER_EVICTION_H_
#define KVEVICT_CORE_EVICT_LAYER_EVICTION_H_

#include <cstdint>

#include "core/backend.h"

namespace kvevict {

// What becomes of a layer.
struct LayerOutcome {
  uint32_t layer = 0;
  uint32_t owner = 0;     // the first layer with the same cache; mostly `layer`
  uint32_t n_tokens = 0;  // slots held; of any list, the most
  uint32_t n_keep = 0;    // slots that survive, likewise
  uint32_t budget = 0;    // of each list, where they share
  // In one word, since a sequence has two of these for each layer.
  uint32_t n_rescued : 30 = 0;  // of the survivors, on top of the budget
  bool loses : 1 = false;       // a list keeps less than it holds
  bool lacks_room : 1 = false;  // left alone: see LacksRoom()
  KeepLists keep;               // where it loses
  MapJob map;
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
  TableJob table;  // in place of it
  RotateJob rotate;
};

// Of a layer of which one chunk after the other is scored.
struct ChunkedLayer {
  ScoreJob whole;     // with all its tokens
  kvevict_view view;  // of the chunk at hand
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_LAYER_EVICTION_H_
