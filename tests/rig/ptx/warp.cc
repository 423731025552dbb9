#include "tests/rig/ptx/warp.h"

#include <bit>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {

Lane& Warp::lane(uint32_t index) const { return block->lanes_[first + index]; }

void Warp::Start() {
  all = n_lanes == 32 ? 0xFFFFFFFF : (1u << n_lanes) - 1;
  exited = at_collective = at_barrier = 0;
}

void Warp::Note(const Lane& lane) {
  const uint32_t bit = 1u << lane.index();
  at_collective &= ~bit;
  at_barrier &= ~bit;
  if (lane.state == LaneState::kAtWarp) at_collective |= bit;
  if (lane.state == LaneState::kAtBarrier) at_barrier |= bit;
  if (lane.state == LaneState::kExited) exited |= bit;
}

void Warp::TryCollective(const Lane& here) {
  if ((here.mask >> here.index() & 1) == 0) {
    Fail("the thread is not in its own mask " + Hex(here.mask));
  }
  const uint32_t asked = here.mask & Alive();
  if ((asked & at_barrier) != 0) {
    block->FailDivergent(
        here,
        lane(static_cast<uint32_t>(std::countr_zero(asked & at_barrier))));
  }
  if ((asked & ~at_collective) != 0) return;
  for (uint32_t k = 0; k < n_lanes; ++k) {
    const Lane& other = lane(k);
    if ((asked >> k & 1) == 0) continue;
    if (other.pc != here.pc) {
      // The other may yet go on, unless it waits for this one.
      if ((other.mask >> here.index() & 1) == 0) return;
      block->FailDivergent(here, other);
    }
    if (other.mask != here.mask) {
      Fail("masks " + Hex(here.mask) + " and " + Hex(other.mask) +
           " at one collective");
    }
  }
  const Instruction& i = block->grid.kernel.code[here.pc - 1];
  i.together(*this, i, asked);
  if (asked == Alive()) traffic.Flush(block->grid.counters);
  for (uint32_t k = 0; k < n_lanes; ++k) {
    if ((asked >> k & 1) != 0) block->Resume(lane(k));
  }
}

}  // namespace kvevict::ptx
