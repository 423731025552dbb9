// Loads and stores of all spaces, prefetches, fences.
#include <cstring>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

// flag: an acquiring load, after which others have a turn, since it may be one
// of a loop that waits for them.
template <class T>
void RunLoad(Lane& lane, const Instruction& i) {
  const int n = i.counts[0];
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[n]) + static_cast<uint64_t>(i.offsets[0]);
  const uint8_t* from =
      lane.Load(i, i.space, address, static_cast<uint32_t>(n * sizeof(T)));
  for (int k = 0; k < n; ++k) {
    T value;
    std::memcpy(&value, from + k * sizeof(T), sizeof(T));
    lane.Set(i.slots[k], value);
  }
  if (i.flag) lane.state = LaneState::kYielded;
}

template <class T>
void RunStore(Lane& lane, const Instruction& i) {
  const int n = i.counts[1];
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[0]) + static_cast<uint64_t>(i.offsets[0]);
  uint8_t* to =
      lane.Store(i, i.space, address, static_cast<uint32_t>(n * sizeof(T)));
  for (int k = 0; k < n; ++k) {
    const T value = lane.Get<T>(i.slots[1 + k]);
    std::memcpy(to + k * sizeof(T), &value, sizeof(T));
  }
}

// Hints to caches change nothing that the executor sees.
void TakeCacheHints(Modifiers& m) {
  m.TakeOneOf({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"});
  m.TakePrefixAnywhere("L1::");
  for (const char* size : {"L2::64B", "L2::128B", "L2::256B"}) {
    m.TakeAnywhere(size);
  }
}

// One thread runs at a time and every store is seen at once, so the memory
// model's words need no more than to be known.
void TakeScope(Modifiers& m) { m.ExpectOneOf({"cta", "gpu", "sys"}); }

int TakeVector(Modifiers& m) {
  static constexpr int kSizes[] = {1, 2, 4};
  return kSizes[m.TakeOneOf({"v2", "v4"}) + 1];
}

void CheckVector(int expected, int found) {
  if (expected != found) Fail("the vector and its operands differ");
}

// nvcc writes the space after the order, inline assembly at times before.
void TakeOrderAndSpace(Modifiers& m, const char* ordered, Instruction& i) {
  i.space = m.TakeSpace();
  const int order = m.TakeOneOf({"weak", "volatile", "relaxed", ordered});
  if (order >= 2) TakeScope(m);
  i.flag = order == 3;
  if (i.space == Space::kGeneric) i.space = m.TakeSpace();
}

void DecodeLoad(Modifiers& m, Instruction& i) {
  TakeOrderAndSpace(m, "acquire", i);
  TakeCacheHints(m);
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
  TakeOrderAndSpace(m, "release", i);
  i.flag = false;
  TakeCacheHints(m);
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

void RunNothing(Lane&, const Instruction&) {}

void DecodePrefetch(Modifiers& m, Instruction& i) {
  m.TakeSpace();
  m.ExpectOneOf({"L1", "L2"});
  i.run = &RunNothing;
}

void DecodeMemoryBarrier(Modifiers& m, Instruction& i) {
  m.ExpectOneOf({"cta", "gl", "sys"});
  i.run = &RunNothing;
}

void DecodeFence(Modifiers& m, Instruction& i) {
  m.ExpectOneOf({"sc", "acq_rel"});
  TakeScope(m);
  i.run = &RunNothing;
}

constexpr Opcode kOpcodes[] = {
    {"ld", "Da", &DecodeLoad},          {"st", "aS", &DecodeStore},
    {"prefetch", "a", &DecodePrefetch}, {"membar", "", &DecodeMemoryBarrier},
    {"fence", "", &DecodeFence, 70},
};

}  // namespace

std::span<const Opcode> MemoryOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
