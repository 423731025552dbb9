// Comparisons and choices: setp, selp.
#include <cmath>

#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

// The order is DecodeSetPredicate()'s.
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
  kComparisons
};

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
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    case kGe:
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

template <class T, uint8_t kComparison>
void RunSetPredicate(Lane& lane, const Instruction& i) {
  const bool holds =
      Holds(kComparison, lane.Get<T>(i.slots[2]), lane.Get<T>(i.slots[3]));
  lane.Set<uint8_t>(i.slots[0], holds);
  lane.Set<uint8_t>(i.slots[1], !holds);
}

template <class T, size_t... kComparisons>
Handler SetPredicate(uint8_t comparison, std::index_sequence<kComparisons...>) {
  static constexpr Handler kHandlers[] = {&RunSetPredicate<T, kComparisons>...};
  return kHandlers[comparison];
}

template <class T>
void RunSelect(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0],
           lane.Get<T>(i.slots[lane.GetPredicate(i.slots[3]) ? 1 : 2]));
}

void DecodeSetPredicate(Modifiers& m, Instruction& i) {
  const auto comparison = static_cast<uint8_t>(
      m.ExpectOneOf({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu",
                     "leu", "gtu", "geu", "num", "nan"}));
  i.run = ForNumber(m.ExpectType(), [&](auto tag) -> Handler {
    return SetPredicate<typename decltype(tag)::type>(
        comparison, std::make_index_sequence<kComparisons>());
  });
}

void DecodeSelect(Modifiers& m, Instruction& i) {
  i.run = ForNumber(m.ExpectType(), [](auto tag) -> Handler {
    return &RunSelect<typename decltype(tag)::type>;
  });
}

constexpr Opcode kCompareOpcodes[] = {
    {"setp", "qss", &DecodeSetPredicate},
    {"selp", "dsss", &DecodeSelect},
};

}  // namespace

std::span<const Opcode> CompareOpcodes() { return kCompareOpcodes; }

}  // namespace kvevict::ptx
