// A warp of 32 lanes and its collectives.
#ifndef KVEVICT_TESTS_RIG_PTX_WARP_H_
#define KVEVICT_TESTS_RIG_PTX_WARP_H_

#include <cstdint>

#include "tests/rig/ptx/lane.h"
#include "tests/rig/ptx/traffic.h"

namespace kvevict::ptx {

class Warp {
 public:
  Block* block = nullptr;
  uint32_t first = 0;    // lane 0 is this lane of the block
  uint32_t n_lanes = 0;  // 32, except in the last warp
  uint32_t all = 0;      // a bit per lane, as in the following
  uint32_t exited = 0;
  uint32_t at_collective = 0;
  uint32_t at_barrier = 0;
  Traffic traffic;

  Lane& lane(uint32_t index) const;
  uint32_t Alive() const { return all & ~exited; }

  void Start();
  // Notes that a lane waits, has ended, or goes on.
  void Note(const Lane& lane);

  // Executes the collective that `lane` is at if nobody is missing. Throws
  // Error if a lane of the mask waits elsewhere.
  void TryCollective(const Lane& lane);
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_WARP_H_
