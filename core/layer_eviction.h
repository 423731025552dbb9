// One layer's part in an eviction, and in each of its operations.
#ifndef KVEVICT_CORE_LAYER_EVICTION_H_
#define KVEVICT_CORE_LAYER_EVICTION_H_

#include <cstdint>

#include "core/backend.h"

namespace kvevict {

struct LayerEviction {
  uint32_t layer = 0;
  uint32_t owner = 0;     // the first layer with the same cache; mostly `layer`
  uint32_t n_tokens = 0;  // slots held; of any list, the most
  uint32_t n_keep = 0;    // slots that survive, likewise
  bool loses = false;     // a list keeps less than it holds
  uint32_t budget = 0;    // of each list, where they share
  ScoreJob score;
  ShapeJob shape;
  ReduceJob reduce;
  SelectJob select;
  MoveJob move;
  MapJob map;
};

}  // namespace kvevict

#endif  // KVEVICT_CORE_LAYER_EVICTION_H_
