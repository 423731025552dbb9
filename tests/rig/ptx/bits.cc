// Bits: and or xor not, shifts, fields, counts, permutations.
#include <bit>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

template <class T>
constexpr uint32_t kBits = 8 * sizeof(T);

struct And {
  template <class T>
  static T Run(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T Run(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T Run(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  static T Run(T a) {
    return static_cast<T>(~a);
  }
};
struct NotPredicate {
  static uint8_t Run(uint8_t a) { return static_cast<uint8_t>(~a & 1); }
};
struct CountOnes {
  template <class T>
  static uint32_t Run(T a) {
    return static_cast<uint32_t>(std::popcount(a));
  }
};
struct CountLeadingZeros {
  template <class T>
  static uint32_t Run(T a) {
    return static_cast<uint32_t>(std::countl_zero(a));
  }
};

template <class Op>
void DecodeLogic(Modifiers& m, Instruction& i) {
  const Type type = m.ExpectType();
  i.run = type == Type::kPred ? &RunBinary<uint8_t, Op> : BinaryOf<Op>(type);
}

void DecodeNot(Modifiers& m, Instruction& i) {
  const Type type = m.ExpectType();
  i.run = type == Type::kPred ? &RunUnary<uint8_t, NotPredicate>
                              : UnaryOf<Not>(type);
}

template <class Op>
void DecodeCount(Modifiers& m, Instruction& i) {
  m.Expect("b32");
  i.run = &RunUnary<uint32_t, Op>;
}

// Shifts by the width or more leave nothing but the sign.
template <class T>
void RunShiftLeft(Lane& lane, const Instruction& i) {
  const auto by = lane.Get<uint32_t>(i.slots[2]);
  const uint64_t value = lane.Get<T>(i.slots[1]);
  lane.Set(i.slots[0], static_cast<T>(by >= kBits<T> ? 0 : value << by));
}

template <class T>
void RunShiftRight(Lane& lane, const Instruction& i) {
  const auto by = std::min(lane.Get<uint32_t>(i.slots[2]), kBits<T>);
  const T value = lane.Get<T>(i.slots[1]);
  const T half = static_cast<T>(value >> (by / 2));  // by = width is undefined
  lane.Set(i.slots[0], static_cast<T>(half >> (by - by / 2)));
}

void DecodeShiftLeft(Modifiers& m, Instruction& i) {
  i.run = ForInteger(m.ExpectType(), [](auto tag) -> Handler {
    using T = typename decltype(tag)::type;
    return &RunShiftLeft<std::make_unsigned_t<T>>;
  });
}

void DecodeShiftRight(Modifiers& m, Instruction& i) {
  i.run = ForInteger(m.ExpectType(), [](auto tag) -> Handler {
    return &RunShiftRight<typename decltype(tag)::type>;
  });
}

// Takes 32 of the 64 bits high:low. flag: left.
void RunFunnelShift(Lane& lane, const Instruction& i) {
  const uint64_t both = uint64_t{lane.Get<uint32_t>(i.slots[2])} << 32 |
                        lane.Get<uint32_t>(i.slots[1]);
  const uint32_t by = lane.Get<uint32_t>(i.slots[3]) & 31;
  lane.Set(i.slots[0],
           static_cast<uint32_t>(i.flag ? both >> (32 - by) : both >> by));
}

void DecodeFunnelShift(Modifiers& m, Instruction& i) {
  i.flag = m.ExpectOneOf({"r", "l"}) == 1;
  m.Expect("wrap");
  m.Expect("b32");
  i.run = &RunFunnelShift;
}

template <class T>
void RunInsert(Lane& lane, const Instruction& i) {
  const T field = lane.Get<T>(i.slots[1]);
  const T into = lane.Get<T>(i.slots[2]);
  const uint32_t position = lane.Get<uint32_t>(i.slots[3]) & 255;
  const uint32_t length = lane.Get<uint32_t>(i.slots[4]) & 255;
  T mask = 0;
  for (uint32_t bit = position; bit < position + length && bit < kBits<T>;
       ++bit) {
    mask |= T{1} << bit;
  }
  const T moved = position < kBits<T> ? field << position : 0;
  lane.Set(i.slots[0], static_cast<T>((moved & mask) | (into & ~mask)));
}

void DecodeInsert(Modifiers& m, Instruction& i) {
  i.run = m.ExpectOneOf({"b32", "b64"}) == 0 ? &RunInsert<uint32_t>
                                             : &RunInsert<uint64_t>;
}

void RunPermute(Lane& lane, const Instruction& i) {
  const uint64_t bytes = uint64_t{lane.Get<uint32_t>(i.slots[2])} << 32 |
                         lane.Get<uint32_t>(i.slots[1]);
  const auto selectors = lane.Get<uint32_t>(i.slots[3]);
  uint32_t result = 0;
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t selector = selectors >> 4 * k & 15;
    auto byte = static_cast<uint8_t>(bytes >> 8 * (selector & 7));
    if ((selector & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= uint32_t{byte} << 8 * k;
  }
  lane.Set(i.slots[0], result);
}

void DecodePermute(Modifiers& m, Instruction& i) {
  m.Expect("b32");
  i.run = &RunPermute;
}

constexpr Opcode kBitOpcodes[] = {
    {"and", "dss", &DecodeLogic<And>},
    {"or", "dss", &DecodeLogic<Or>},
    {"xor", "dss", &DecodeLogic<Xor>},
    {"not", "ds", &DecodeNot},
    {"popc", "ds", &DecodeCount<CountOnes>},
    {"clz", "ds", &DecodeCount<CountLeadingZeros>},
    {"shl", "dss", &DecodeShiftLeft},
    {"shr", "dss", &DecodeShiftRight},
    {"shf", "dsss", &DecodeFunnelShift},
    {"bfi", "dssss", &DecodeInsert},
    {"prmt", "dsss", &DecodePermute},
};

}  // namespace

std::span<const Opcode> BitOpcodes() { return kBitOpcodes; }

}  // namespace kvevict::ptx
