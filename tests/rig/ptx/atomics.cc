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
void RunAtomic(Lane& lane, const Instruction& i) {
  const int first = kResult ? 1 : 0;
  const uint64_t address =
      lane.Get<uint64_t>(i.slots[first]) + static_cast<uint64_t>(i.offsets[0]);
  uint64_t& idle_turns = lane.block->grid.idle_turns;
  const uint64_t idle_turns_before = idle_turns;
  uint8_t* at = lane.Store(i, i.space, address, sizeof(T));
  T old;
  std::memcpy(&old, at, sizeof(T));
  const T b = lane.Get<T>(i.slots[first + 1]);
  const T c = i.mode == kCompareAndSwap ? lane.Get<T>(i.slots[first + 2]) : T{};
  const T value = Apply(i.mode, old, b, c);
  std::memcpy(at, &value, sizeof(T));
  if (kResult) lane.Set(i.slots[0], old);
  // A lock or a ticket: let others come first. What changes nothing may be a
  // loop that waits for somebody.
  if (i.space != Space::kShared) lane.state = LaneState::kYielded;
  if (value == old) idle_turns = idle_turns_before;
}

template <bool kResult>
void DecodeAtomic(Modifiers& m, Instruction& i) {
  i.space = m.TakeSpace();
  if (m.TakeOneOf({"relaxed", "acquire", "release", "acq_rel"}) >= 0) {
    m.ExpectOneOf({"cta", "gpu", "sys"});
  } else {
    m.TakeOneOf({"cta", "gpu", "sys"});
  }
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
