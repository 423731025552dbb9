#include "tests/cuda/ptx/warp.h"

#include "tests/cuda/ptx/block.h"
#include "tests/cuda/ptx/error.h"

namespace kvevict::ptx {

Lane& Warp::lane(uint32_t index) const { return block->lanes_[first + index]; }

uint32_t Warp::Alive() const {
  uint32_t alive = 0;
  for (uint32_t k = 0; k < n_lanes; ++k) {
    if (lane(k).state != LaneState::kExited) alive |= 1u << k;
  }
  return alive;
}

void Warp::TryCollective(const Lane& here) {
  if ((here.mask >> here.index() & 1) == 0) {
    Fail("the thread is not in its own mask " + Hex(here.mask));
  }
  const uint32_t asked = here.mask & Alive();
  bool complete = true;
  for (uint32_t k = 0; k < n_lanes; ++k) {
    const Lane& other = lane(k);
    if ((asked >> k & 1) == 0) continue;
    if (other.state == LaneState::kAtBarrier) {
      block->FailDivergent(here, other);
    } else if (other.state != LaneState::kAtWarp) {
      complete = false;
    } else if (other.pc != here.pc) {
      // The other may yet go on, unless it waits for this one.
      if ((other.mask >> here.index() & 1) != 0) {
        block->FailDivergent(here, other);
      }
      complete = false;
    } else if (other.mask != here.mask) {
      Fail("masks " + Hex(here.mask) + " and " + Hex(other.mask) +
           " at one collective");
    }
  }
  if (!complete) return;
  const Instruction& i = block->grid.kernel.code[here.pc - 1];
  i.together(*this, i, asked);
  if (asked == Alive()) traffic.Flush(block->grid.counters);
  for (uint32_t k = 0; k < n_lanes; ++k) {
    if ((asked >> k & 1) != 0) block->Resume(lane(k));
  }
}

}  // namespace kvevict::ptx
