// Atomics that kernels use: atom and red, which add. Floats are left out on purpose:
// their sums would depend on the schedule.
#include <algorithm>
#include <cstring>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

// kResult: atom, whose first operand receives the old value; red has none.
template <bool kResult>
void PerformAtomic(const PendingAccess& a) {
  uint32_t old;
  uint32_t addend;
  std::memcpy(&old, a.at, sizeof(old));
  std::memcpy(&addend, a.operands, sizeof(addend));
  const uint32_t value = old + addend;
  std::memcpy(a.at, &value, sizeof(value));
  if (kResult && a.lane != nullptr) a.lane->Set(a.instruction->slots[0], old);
}

void Issue(Lane& lane, Space space, PendingAccess& access) {
  const Instruction& i = *access.instruction;
  InFlight& in_flight = lane.block->grid.in_flight;
  if (space != Space::kGlobal) {
    access.perform(access);
    return;
  }
  if (i.scope == Scope::kBlock) {
    in_flight.AddTorn(lane, access);
  } else {
    in_flight.Add(lane, access);
  }
}

template <bool kResult>
void RunAtomic(Lane& lane, const Instruction& i) {
  const int first = kResult ? 1 : 0;
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[first]) + static_cast<uint64_t>(i.offsets[0]);
  uint64_t& idle_turns = lane.block->grid.idle_turns;
  const uint64_t idle_turns_before = idle_turns;
  const Place place = lane.Store(i, i.space, address, sizeof(uint32_t));
  const auto addend = lane.Get<uint32_t>(i.slots[first + 1]);
  // It may be a lock or a ticket, so others come first. An atomic that changes
  // nothing may be part of a waiting loop.
  if (i.space != Space::kShared) lane.state = LaneState::kYielded;
  if (addend == 0) idle_turns = idle_turns_before;
  PendingAccess access;
  access.perform = &PerformAtomic<kResult>;
  access.instruction = &i;
  access.lane = kResult ? &lane : nullptr;
  access.at = place.at;
  access.bytes = sizeof(addend);
  access.kind = AccessKind::kAtomic;
  std::memcpy(access.operands, &addend, sizeof(addend));
  Issue(lane, place.space, access);
}

template <bool kResult>
void DecodeAtomic(Modifiers& m, Instruction& i) {
  i.space = m.TakeSpace();
  static constexpr Order kOrders[] = {Order::kRelaxed, Order::kAcquire,
                                      Order::kRelease, Order::kAcquireRelease};
  const int order = m.TakeOneOf({"relaxed", "acquire", "release", "acq_rel"});
  i.order = kOrders[std::max(order, 0)];
  const int scope = m.TakeOneOf({"cta", "gpu"});
  if (order >= 0 && scope < 0) Fail("an order without a scope");
  i.scope = scope == 0 ? Scope::kBlock : Scope::kGpu;
  if (i.space == Space::kNone) i.space = m.TakeSpace();
  if (i.space == Space::kNone) Fail("generic addresses are not known");
  m.Expect("add");
  m.Expect("u32");
  i.run = &RunAtomic<kResult>;
}

constexpr Opcode kAtomicOpcodes[] = {
    {"atom", "das", &DecodeAtomic<true>},
    {"red", "as", &DecodeAtomic<false>},
};

}  // namespace

std::span<const Opcode> AtomicOpcodes() { return kAtomicOpcodes; }

}  // namespace kvevict::ptx
