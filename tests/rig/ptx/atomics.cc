// Integer atomics: atom, red. Floats are left out on purpose: their sums would
// depend on the schedule.
#include <algorithm>
#include <cstring>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

enum Operation : uint8_t {
  kAdd,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
  kExchange,
  kIncrement,
  kDecrement,
  kCompareAndSwap
};

template <class T>
T Apply(uint8_t operation, T old, T b, T c) {
  switch (operation) {
    case kAdd:
      return static_cast<T>(static_cast<uint64_t>(old) +
                            static_cast<uint64_t>(b));
    case kMin:
      return std::min(old, b);
    case kMax:
      return std::max(old, b);
    case kAnd:
      return old & b;
    case kOr:
      return old | b;
    case kXor:
      return old ^ b;
    case kExchange:
      return b;
    case kIncrement:
      return old >= b ? 0 : old + 1;
    case kDecrement:
      return old == 0 || old > b ? b : old - 1;
    default:  // kCompareAndSwap
      return old == b ? c : old;
  }
}

// kResult: atom, whose first operand receives the old value; red has none.
template <class T, bool kResult>
void PerformAtomic(const PendingAccess& a) {
  T old;
  T operands[2];
  std::memcpy(&old, a.at, sizeof(T));
  std::memcpy(operands, a.operands, sizeof(operands));
  const T value = Apply(a.instruction->mode, old, operands[0], operands[1]);
  std::memcpy(a.at, &value, sizeof(T));
  if (kResult && a.lane != nullptr) a.lane->Set(a.instruction->slots[0], old);
}

void Issue(Lane& lane, Space space, const PendingAccess& access) {
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

template <class T, bool kResult>
void RunAtomic(Lane& lane, const Instruction& i) {
  const int first = kResult ? 1 : 0;
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[first]) + static_cast<uint64_t>(i.offsets[0]);
  uint64_t& idle_turns = lane.block->grid.idle_turns;
  const uint64_t idle_turns_before = idle_turns;
  const Place place = lane.Store(i, i.space, address, sizeof(T));
  T old;
  std::memcpy(&old, place.at, sizeof(T));
  const T operands[2] = {
      lane.Get<T>(i.slots[first + 1]),
      i.mode == kCompareAndSwap ? lane.Get<T>(i.slots[first + 2]) : T{}};
  // It may be a lock or a ticket, so others come first. An atomic that changes
  // nothing may be part of a waiting loop.
  if (i.space != Space::kShared) lane.state = LaneState::kYielded;
  if (Apply(i.mode, old, operands[0], operands[1]) == old) {
    idle_turns = idle_turns_before;
  }
  PendingAccess access;
  access.perform = &PerformAtomic<T, kResult>;
  access.instruction = &i;
  access.lane = kResult ? &lane : nullptr;
  access.at = place.at;
  access.bytes = sizeof(T);
  access.kind = AccessKind::kAtomic;
  std::memcpy(access.operands, operands, sizeof(operands));
  Issue(lane, place.space, access);
}

template <bool kResult>
void DecodeAtomic(Modifiers& m, Instruction& i) {
  i.space = m.TakeSpace();
  static constexpr Order kOrders[] = {Order::kRelaxed, Order::kAcquire,
                                      Order::kRelease, Order::kAcquireRelease};
  const int order = m.TakeOneOf({"relaxed", "acquire", "release", "acq_rel"});
  i.order = kOrders[std::max(order, 0)];
  const int scope = m.TakeOneOf({"cta", "gpu", "sys"});
  if (order >= 0 && scope < 0) Fail("an order without a scope");
  i.scope = scope == 0 ? Scope::kBlock : Scope::kGpu;
  if (i.space == Space::kGeneric) i.space = m.TakeSpace();
  i.mode = static_cast<uint8_t>(m.ExpectOneOf(
      {"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"}));
  const int has_c = i.counts[kResult ? 3 : 2];
  if ((i.mode == kCompareAndSwap) != (has_c == 1)) {
    Fail("the number of operands does not go with the operation");
  }
  if (!kResult && (i.mode == kCompareAndSwap || i.mode == kExchange)) {
    Fail("red has no such operation");
  }
  i.run = ForInteger(m.ExpectType(), [](auto tag) -> Handler {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2) {
      Fail("16-bit atomics are not known");
    } else {
      return &RunAtomic<T, kResult>;
    }
  });
}

constexpr Opcode kOpcodes[] = {
    {"atom", "das?s", &DecodeAtomic<true>},
    {"red", "as?s", &DecodeAtomic<false>},
};

}  // namespace

std::span<const Opcode> AtomicOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
