// Comparisons and choices: setp, set, selp.
#include <cmath>
#include <utility>

#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

// The order is TakeComparison()'s.
enum Comparison : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,  // false where an operand is NaN
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,  // true where an operand is NaN
  kNum,
  kNan,
  kLo,
  kLs,
  kHi,
  kHs  // lt, le, gt, ge of unsigned integers
};
// How the result is combined with the optional predicate operand.
enum Combination : uint8_t { kAlone = 0, kAnd, kOr, kXor };

// mode: Comparison, and Combination from bit 5; flag: .ftz.
constexpr int kCombinationShift = 5;

template <class T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T>
inline bool Holds(uint8_t comparison, T a, T b) {
  switch (comparison) {
    case kEq:
      return a == b;
    case kLt:
    case kLo:
      return a < b;
    case kLe:
    case kLs:
      return a <= b;
    case kGt:
    case kHi:
      return a > b;
    case kGe:
    case kHs:
      return a >= b;
    case kNe:
      return a < b || a > b;
    case kEqu:
      return !(a < b || a > b);
    case kNeu:
      return a != b;
    case kLtu:
      return !(a >= b);
    case kLeu:
      return !(a > b);
    case kGtu:
      return !(a <= b);
    case kGeu:
      return !(a < b);
    case kNum:
      return !IsNan(a) && !IsNan(b);
    default:  // kNan
      return IsNan(a) || IsNan(b);
  }
}

bool Combine(uint8_t combination, bool a, bool c) {
  switch (combination) {
    case kAnd:
      return a && c;
    case kOr:
      return a || c;
    case kXor:
      return a != c;
    default:
      return a;
  }
}

template <class T>
T Read(const Lane& lane, const Instruction& i, int slot) {
  T value = lane.Get<T>(i.slots[slot]);
  if constexpr (std::is_same_v<T, float>) {
    if (i.flag && std::fpclassify(value) == FP_SUBNORMAL) {
      value = std::copysign(0.0f, value);
    }
  }
  return value;
}

// The operands from slot `first`: a, b and perhaps a predicate.
template <class T>
bool Compare(const Lane& lane, const Instruction& i, int first) {
  return Holds(static_cast<uint8_t>(i.mode & 31), Read<T>(lane, i, first),
               Read<T>(lane, i, first + 1));
}
bool Operand(const Lane& lane, const Instruction& i, int slot) {
  return lane.GetPredicate(i.slots[slot]) != i.source_negated;
}

// The common case: no combination, no .ftz.
template <class T, uint8_t kComparison>
void RunPlainSetPredicate(Lane& lane, const Instruction& i) {
  const bool holds =
      Holds(kComparison, lane.Get<T>(i.slots[2]), lane.Get<T>(i.slots[3]));
  lane.Set<uint8_t>(i.slots[0], holds);
  lane.Set<uint8_t>(i.slots[1], !holds);
}

template <class T, size_t... kComparisons>
Handler PlainSetPredicate(uint8_t comparison,
                          std::index_sequence<kComparisons...>) {
  static constexpr Handler kHandlers[] = {
      &RunPlainSetPredicate<T, kComparisons>...};
  return kHandlers[comparison];
}

template <class T>
void RunSetPredicate(Lane& lane, const Instruction& i) {
  const bool holds = Compare<T>(lane, i, 2);
  const auto combination = static_cast<uint8_t>(i.mode >> kCombinationShift);
  const bool c = combination != kAlone && Operand(lane, i, 4);
  lane.Set<uint8_t>(i.slots[0], Combine(combination, holds, c));
  lane.Set<uint8_t>(i.slots[1], Combine(combination, !holds, c));
}

// kFloatResult: 1.0f instead of all ones.
template <class T, bool kFloatResult>
void RunSet(Lane& lane, const Instruction& i) {
  const auto combination = static_cast<uint8_t>(i.mode >> kCombinationShift);
  const bool holds = Combine(combination, Compare<T>(lane, i, 1),
                             combination != kAlone && Operand(lane, i, 3));
  const uint32_t yes = kFloatResult ? 0x3F800000 : 0xFFFFFFFF;
  lane.Set<uint32_t>(i.slots[0], holds ? yes : 0);
}

template <class T>
void RunSelect(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0],
           lane.Get<T>(i.slots[lane.GetPredicate(i.slots[3]) ? 1 : 2]));
}

void TakeComparison(Modifiers& m, Instruction& i) {
  const int comparison = m.ExpectOneOf(
      {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu",
       "geu", "num", "nan", "lo", "ls", "hi", "hs"});
  const int combination = m.TakeOneOf({"and", "or", "xor"}) + 1;
  i.mode = static_cast<uint8_t>(comparison | combination << kCombinationShift);
  i.flag = m.Take("ftz");
}

void CheckOperands(const Instruction& i, int predicate) {
  if ((i.counts[predicate] != 0) != (i.mode >> kCombinationShift != 0)) {
    Fail("a predicate operand goes with .and, .or or .xor");
  }
}

void DecodeSetPredicate(Modifiers& m, Instruction& i) {
  TakeComparison(m, i);
  CheckOperands(i, 3);
  const bool plain = i.mode <= kHs && !i.flag;
  i.run = ForNumber(m.ExpectType(), [&](auto tag) -> Handler {
    using T = typename decltype(tag)::type;
    if (!plain) return &RunSetPredicate<T>;
    return PlainSetPredicate<T>(i.mode, std::make_index_sequence<kHs + 1>());
  });
}

void DecodeSet(Modifiers& m, Instruction& i) {
  TakeComparison(m, i);
  CheckOperands(i, 3);
  const bool to_float = m.ExpectOneOf({"u32", "s32", "f32"}) == 2;
  i.run = ForNumber(m.ExpectType(), [&](auto tag) -> Handler {
    using T = typename decltype(tag)::type;
    return to_float ? &RunSet<T, true> : &RunSet<T, false>;
  });
}

void DecodeSelect(Modifiers& m, Instruction& i) {
  i.run = ForNumber(m.ExpectType(), [](auto tag) -> Handler {
    return &RunSelect<typename decltype(tag)::type>;
  });
}

constexpr Opcode kOpcodes[] = {
    {"setp", "qss?p", &DecodeSetPredicate},
    {"set", "dss?p", &DecodeSet},
    {"selp", "dsss", &DecodeSelect},
};

}  // namespace

std::span<const Opcode> CompareOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
