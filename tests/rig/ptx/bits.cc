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
struct ReverseBits {
  template <class T>
  static T Run(T a) {
    T reversed = 0;
    for (uint32_t bit = 0; bit < kBits<T>; ++bit) {
      reversed = static_cast<T>(reversed << 1 | (a >> bit & 1));
    }
    return reversed;
  }
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

// popc, clz and brev of 32 or 64 bits.
template <class Op>
void DecodeCount(Modifiers& m, Instruction& i) {
  i.run = m.ExpectOneOf({"b32", "b64"}) == 0 ? &RunUnary<uint32_t, Op>
                                             : &RunUnary<uint64_t, Op>;
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

// Takes 32 of the 64 bits high:low. mode: 1 left; flag: the count is clamped to
// 32 instead of wrapping.
void RunFunnelShift(Lane& lane, const Instruction& i) {
  const uint64_t both = uint64_t{lane.Get<uint32_t>(i.slots[2])} << 32 |
                        lane.Get<uint32_t>(i.slots[1]);
  uint32_t by = lane.Get<uint32_t>(i.slots[3]);
  by = i.flag ? std::min(by, 32u) : by & 31;
  lane.Set(i.slots[0],
           static_cast<uint32_t>(i.mode == 1 ? both >> (32 - by) : both >> by));
}

void DecodeFunnelShift(Modifiers& m, Instruction& i) {
  i.mode = m.ExpectOneOf({"r", "l"}) == 1 ? 1 : 0;
  i.flag = m.ExpectOneOf({"wrap", "clamp"}) == 1;
  m.Expect("b32");
  i.run = &RunFunnelShift;
}

// bfe: position and length are the low bytes; a signed field that reaches past
// the end repeats the last bit.
template <class T>
void RunExtract(Lane& lane, const Instruction& i) {
  using Wide =
      std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  const auto value = static_cast<Wide>(lane.Get<T>(i.slots[1]));
  const uint32_t position = lane.Get<uint32_t>(i.slots[2]) & 255;
  const uint32_t length = lane.Get<uint32_t>(i.slots[3]) & 255;
  T field = 0;
  if (length != 0) {
    const uint32_t shift = std::min(position, kBits<T>);
    const uint32_t kept = std::min(length, kBits<T>);
    // Shifting up to the top of 128 bits and down again cuts and extends the sign.
    const uint32_t up = 128 - kept;
    field = static_cast<T>(
        static_cast<Wide>(static_cast<unsigned __int128>(value >> shift)
                          << up) >>
        up);
  }
  lane.Set(i.slots[0], field);
}

void DecodeExtract(Modifiers& m, Instruction& i) {
  const Type type = m.ExpectType();
  i.run = ForInteger(type, [](auto tag) -> Handler {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 2) Fail("bfe has no 16-bit form");
    return &RunExtract<T>;
  });
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

// The highest bit that is not the sign; flag: how far it is from the top.
template <class T>
void RunFind(Lane& lane, const Instruction& i) {
  using U = std::make_unsigned_t<T>;
  const T value = lane.Get<T>(i.slots[1]);
  const U bits = static_cast<U>(value < T{0} ? ~value : value);
  uint32_t found = 0xFFFFFFFF;
  if (bits != 0) {
    const auto above = static_cast<uint32_t>(std::countl_zero(bits));
    found = i.flag ? above : kBits<T> - 1 - above;
  }
  lane.Set(i.slots[0], found);
}

void DecodeFind(Modifiers& m, Instruction& i) {
  i.flag = m.Take("shiftamt");
  i.run = ForInteger(m.ExpectType(), [](auto tag) -> Handler {
    return &RunFind<typename decltype(tag)::type>;
  });
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

// Any function of three bits, by its table.
void RunLogic3(Lane& lane, const Instruction& i) {
  const auto a = lane.Get<uint32_t>(i.slots[1]);
  const auto b = lane.Get<uint32_t>(i.slots[2]);
  const auto c = lane.Get<uint32_t>(i.slots[3]);
  const auto table = lane.Get<uint32_t>(i.slots[4]);
  uint32_t result = 0;
  for (uint32_t row = 0; row < 8; ++row) {
    if ((table >> row & 1) == 0) continue;
    result |= ((row & 4) != 0 ? a : ~a) & ((row & 2) != 0 ? b : ~b) &
              ((row & 1) != 0 ? c : ~c);
  }
  lane.Set(i.slots[0], result);
}

void DecodeLogic3(Modifiers& m, Instruction& i) {
  m.Expect("b32");
  i.run = &RunLogic3;
}

constexpr Opcode kOpcodes[] = {
    {"and", "dss", &DecodeLogic<And>},
    {"or", "dss", &DecodeLogic<Or>},
    {"xor", "dss", &DecodeLogic<Xor>},
    {"not", "ds", &DecodeNot},
    {"popc", "ds", &DecodeCount<CountOnes>},
    {"clz", "ds", &DecodeCount<CountLeadingZeros>},
    {"brev", "ds", &DecodeCount<ReverseBits>},
    {"shl", "dss", &DecodeShiftLeft},
    {"shr", "dss", &DecodeShiftRight},
    {"shf", "dsss", &DecodeFunnelShift},
    {"bfe", "dsss", &DecodeExtract},
    {"bfi", "dssss", &DecodeInsert},
    {"bfind", "ds", &DecodeFind},
    {"prmt", "dsss", &DecodePermute},
    {"lop3", "dssss", &DecodeLogic3},
};

}  // namespace

std::span<const Opcode> BitOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
