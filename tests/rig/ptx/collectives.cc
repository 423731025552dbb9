// Joint operations of lanes and warps: shfl, vote, barriers.
#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"
#include "tests/rig/ptx/warp.h"

namespace kvevict::ptx {
namespace {

// Stops the lane; target: operand slot of the mask.
void RunStop(Lane& lane, const Instruction& i) {
  lane.mask = lane.Get<uint32_t>(i.slots[i.target]);
  lane.state = LaneState::kAtWarp;
}

template <class Act>
void ForEachLane(Warp& warp, uint32_t mask, Act act) {
  for (uint32_t k = 0; k < warp.n_lanes; ++k) {
    if ((mask >> k & 1) != 0) act(k, warp.lane(k));
  }
}

// ---- shfl.sync: d|p, a, b, c, mask ----

enum ShuffleMode : uint8_t { kUp, kButterfly, kIndex };

// The lane to read from, or -1: its own value and a false predicate.
int ShuffleSource(uint8_t mode, uint32_t lane, uint32_t b, uint32_t c) {
  b &= 31;
  const uint32_t segment = c >> 8 & 31;
  const uint32_t lowest = lane & segment;
  const auto bound = static_cast<int>(lowest | (c & 31 & ~segment));
  const auto self = static_cast<int>(lane);
  const auto by = static_cast<int>(b);
  switch (mode) {
    case kUp:
      return self - by >= bound ? self - by : -1;
    case kButterfly:
      return (self ^ by) <= bound ? self ^ by : -1;
    default: {
      const auto from = static_cast<int>(lowest | (b & ~segment));
      return from <= bound ? from : -1;
    }
  }
}

void Shuffle(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t values[32] = {};
  ForEachLane(warp, mask, [&](uint32_t k, const Lane& lane) {
    values[k] = lane.Get<uint32_t>(i.slots[2]);
  });
  ForEachLane(warp, mask, [&](uint32_t k, Lane& lane) {
    const int from = ShuffleSource(i.mode, k, lane.Get<uint32_t>(i.slots[3]),
                                   lane.Get<uint32_t>(i.slots[4]));
    const uint32_t source = from < 0 ? k : static_cast<uint32_t>(from);
    if ((mask >> source & 1) == 0) {
      Fail("shfl.sync from lane " + std::to_string(source) +
           ", which does not take part");
    }
    lane.Set(i.slots[0], values[source]);
    lane.Set<uint8_t>(i.slots[1], from >= 0);
  });
}

void DecodeShuffle(Modifiers& m, Instruction& i) {
  m.Expect("sync");
  i.mode = static_cast<uint8_t>(m.ExpectOneOf({"up", "bfly", "idx"}));
  m.Expect("b32");
  i.target = 5;
  i.run = &RunStop;
  i.together = &Shuffle;
}

// ---- vote.sync.ballot: d, a, mask ----

void Vote(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t votes = 0;
  ForEachLane(warp, mask, [&](uint32_t k, const Lane& lane) {
    if (lane.GetPredicate(i.slots[1]) != i.source_negated) votes |= 1u << k;
  });
  ForEachLane(warp, mask,
              [&](uint32_t, Lane& lane) { lane.Set(i.slots[0], votes); });
}

void DecodeVote(Modifiers& m, Instruction& i) {
  m.Expect("sync");
  m.Expect("ballot");
  m.Expect("b32");
  i.target = 2;
  i.run = &RunStop;
  i.together = &Vote;
}

// ---- Barriers ----

// Orders the accesses of its lanes.
void MeetInOrder(Warp& warp, const Instruction&, uint32_t mask) {
  std::vector<Lane*> lanes;
  ForEachLane(warp, mask,
              [&](uint32_t, Lane& lane) { lanes.push_back(&lane); });
  warp.block->grid.in_flight.Meet(lanes);
}

// slots[target] is the barrier's number.
void RunBlockBarrier(Lane& lane, const Instruction& i) {
  if (lane.Get<uint32_t>(i.slots[i.target]) != 0) {
    Fail("only barrier 0 is known");
  }
  lane.state = LaneState::kAtBarrier;
}

// bar.sync 0, bar.warp.sync mask
void DecodeBarrier(Modifiers& m, Instruction& i) {
  if (m.Take("warp")) {
    m.Expect("sync");
    i.target = 0;
    i.run = &RunStop;
    i.together = &MeetInOrder;
    return;
  }
  m.Expect("sync");
  i.run = &RunBlockBarrier;
}

// bar.red.or.pred p, 0, q: see Block::TryBarrier().
void DecodeReduction(Modifiers& m, Instruction& i) {
  m.Expect("or");
  m.Expect("pred");
  i.flag = true;
  i.target = 1;
  i.run = &RunBlockBarrier;
}

constexpr Opcode kWarpOpcodes[] = {
    {"shfl", "qssss", &DecodeShuffle},
    {"vote", "dps", &DecodeVote},
    {"bar", "s", &DecodeBarrier},
    {"bar.red", "dsp", &DecodeReduction},
};

}  // namespace

std::span<const Opcode> WarpOpcodes() { return kWarpOpcodes; }

}  // namespace kvevict::ptx
