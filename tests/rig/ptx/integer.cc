// Integer arithmetic: add sub mul mad div rem min max neg.
#include <algorithm>

#include "tests/rig/ptx/arithmetic.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

using Wide = __int128;

// Results wrap: they are computed in 64 unsigned bits and cut to the type.
struct Add {
  template <class T>
  static T Run(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct Sub {
  template <class T>
  static T Run(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
};
struct MulLow {
  template <class T>
  static T Run(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct MulWide {
  static uint32_t Run(uint16_t a, uint16_t b) { return uint32_t{a} * b; }
  static int32_t Run(int16_t a, int16_t b) { return int32_t{a} * b; }
  static uint64_t Run(uint32_t a, uint32_t b) { return uint64_t{a} * b; }
  static int64_t Run(int32_t a, int32_t b) { return int64_t{a} * b; }
};
struct MulLowAdd {
  template <class T>
  static T Run(T a, T b, T c) {
    return Add::Run(MulLow::Run(a, b), c);
  }
};
struct Div {
  template <class T>
  static T Run(T a, T b) {
    if (b == 0) Fail("division by zero");
    return static_cast<T>(static_cast<Wide>(a) / static_cast<Wide>(b));
  }
};
struct Rem {
  template <class T>
  static T Run(T a, T b) {
    if (b == 0) Fail("division by zero");
    return static_cast<T>(static_cast<Wide>(a) % static_cast<Wide>(b));
  }
};
struct Min {
  template <class T>
  static T Run(T a, T b) {
    return std::min(a, b);
  }
};
struct Max {
  template <class T>
  static T Run(T a, T b) {
    return std::max(a, b);
  }
};
struct Neg {
  template <class T>
  static T Run(T a) {
    return Sub::Run(T{0}, a);
  }
};
template <class T>
void RunMulWide(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0],
           MulWide::Run(lane.Get<T>(i.slots[1]), lane.Get<T>(i.slots[2])));
}

Handler WideOf(Type type) {
  return ForInteger(type, [](auto tag) -> Handler {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 8) {
      Fail("a product of 64-bit numbers cannot be wide");
    } else {
      return &RunMulWide<T>;
    }
  });
}

template <class Op, Arithmetic kFloat>
void DecodeBinary(Modifiers& m, Instruction& i) {
  if (DecodeFloat(kFloat, m, i)) return;
  i.run = BinaryOf<Op>(m.ExpectType());
}

void DecodeNeg(Modifiers& m, Instruction& i) {
  if (DecodeFloat(Arithmetic::kNeg, m, i)) return;
  i.run = UnaryOf<Neg>(m.ExpectType());
}

void DecodeMul(Modifiers& m, Instruction& i) {
  if (DecodeFloat(Arithmetic::kMul, m, i)) return;
  const bool wide = m.ExpectOneOf({"lo", "wide"}) == 1;
  i.run = wide ? WideOf(m.ExpectType()) : BinaryOf<MulLow>(m.ExpectType());
}

void DecodeMad(Modifiers& m, Instruction& i) {
  m.Expect("lo");
  i.run = TernaryOf<MulLowAdd>(m.ExpectType());
}

void DecodeRem(Modifiers& m, Instruction& i) {
  i.run = BinaryOf<Rem>(m.ExpectType());
}

constexpr Opcode kIntegerOpcodes[] = {
    {"add", "dss", &DecodeBinary<Add, Arithmetic::kAdd>},
    {"sub", "dss", &DecodeBinary<Sub, Arithmetic::kSub>},
    {"div", "dss", &DecodeBinary<Div, Arithmetic::kDiv>},
    {"min", "dss", &DecodeBinary<Min, Arithmetic::kMin>},
    {"max", "dss", &DecodeBinary<Max, Arithmetic::kMax>},
    {"neg", "ds", &DecodeNeg},
    {"mul", "dss", &DecodeMul},
    {"mad", "dsss", &DecodeMad},
    {"rem", "dss", &DecodeRem},
};

}  // namespace

std::span<const Opcode> IntegerOpcodes() { return kIntegerOpcodes; }

}  // namespace kvevict::ptx
