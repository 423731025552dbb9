// Loads and stores of all spaces.
#include <cstring>

#include "tests/rig/ptx/block.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

template <class T>
void PerformLoad(const PendingAccess& a) {
  const Instruction& i = *a.instruction;
  for (int k = 0; k < i.counts[0]; ++k) {
    T value;
    std::memcpy(&value, a.at + k * sizeof(T), sizeof(T));
    a.lane->Set(i.slots[k], value);
  }
}

// A strong load is performed at once. Then others have a turn, since it may be
// part of a loop that waits for them.
template <class T>
void RunLoad(Lane& lane, const Instruction& i) {
  const int n = i.counts[0];
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[n]) + static_cast<uint64_t>(i.offsets[0]);
  const auto bytes = static_cast<uint32_t>(n * sizeof(T));
  const Place from = lane.Load(i, i.space, address, bytes);
  InFlight& in_flight = lane.block->grid.in_flight;
  PendingAccess access;
  access.perform = &PerformLoad<T>;
  access.instruction = &i;
  access.lane = &lane;
  access.at = from.at;
  access.bytes = bytes;
  if (IsStrong(i.order)) {
    PerformLoad<T>(access);
    in_flight.NoteStrongRead(lane, from.at, i.order, i.scope);
    lane.state = LaneState::kYielded;
  } else if (InFlight::Has(from.space)) {
    in_flight.Add(lane, access);
  } else {
    PerformLoad<T>(access);
  }
}

template <class T>
void RunStore(Lane& lane, const Instruction& i) {
  const int n = i.counts[1];
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[0]) + static_cast<uint64_t>(i.offsets[0]);
  const auto bytes = static_cast<uint32_t>(n * sizeof(T));
  const Place to = lane.Store(i, i.space, address, bytes);
  PendingAccess access;
  access.perform = &PerformStore;
  access.instruction = &i;
  access.at = to.at;
  access.bytes = bytes;
  access.kind = AccessKind::kStore;
  for (int k = 0; k < n; ++k) {
    const T value = lane.Get<T>(i.slots[1 + k]);
    std::memcpy(access.operands + k * sizeof(T), &value, sizeof(T));
  }
  InFlight& in_flight = lane.block->grid.in_flight;
  if (InFlight::Has(to.space)) {
    in_flight.Add(lane, access);
  } else {
    PerformStore(access);
  }
}

int TakeVector(Modifiers& m) {
  static constexpr int kSizes[] = {1, 2, 4};
  return kSizes[m.TakeOneOf({"v2", "v4"}) + 1];
}

void CheckVector(int expected, int found) {
  if (expected != found) Fail("the vector and its operands differ");
}

// nvcc writes the space after the order, inline assembly sometimes before.
void TakeOrderAndSpace(Modifiers& m, const char* word, Order ordered,
                       Instruction& i) {
  i.space = m.TakeSpace();
  const int order = m.TakeOneOf({"relaxed", word});
  if (order >= 0) {
    i.order = order == 0 ? Order::kRelaxed : ordered;
    i.scope = m.ExpectScope();
  }
  if (i.space == Space::kNone) i.space = m.TakeSpace();
  if (i.space == Space::kNone) Fail("generic addresses are not known");
}

void DecodeLoad(Modifiers& m, Instruction& i) {
  TakeOrderAndSpace(m, "acquire", Order::kAcquire, i);
  const int n = TakeVector(m);
  const Type type = m.ExpectType();
  CheckVector(n, i.counts[0]);
  i.run = type == Type::kF32 ? &RunLoad<uint32_t>
          : type == Type::kF64
              ? &RunLoad<uint64_t>
              : ForAnyInteger(type, [](auto tag) -> Handler {
                  return &RunLoad<typename decltype(tag)::type>;
                });
}

void DecodeStore(Modifiers& m, Instruction& i) {
  TakeOrderAndSpace(m, "release", Order::kRelease, i);
  const int n = TakeVector(m);
  const Type type = m.ExpectType();
  CheckVector(n, i.counts[1]);
  i.run = type == Type::kF32 ? &RunStore<uint32_t>
          : type == Type::kF64
              ? &RunStore<uint64_t>
              : ForAnyInteger(type, [](auto tag) -> Handler {
                  return &RunStore<typename decltype(tag)::type>;
                });
}

constexpr Opcode kMemoryOpcodes[] = {
    {"ld", "Da", &DecodeLoad},
    {"st", "aS", &DecodeStore},
};

}  // namespace

std::span<const Opcode> MemoryOpcodes() { return kMemoryOpcodes; }

}  // namespace kvevict::ptx
