// Float arithmetic. Results are rounded to nearest even; the approximate
// functions are rounded from double precision, so they are at least as exact as
// the hardware's.
#include <cmath>

#include "tests/rig/ptx/arithmetic.h"
#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

// The NaN that an f32 instruction makes.
constexpr uint32_t kNaN32 = 0x7FFFFFFF;

struct Add {
  template <class T>
  static T Run(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  static T Run(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  static T Run(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <class T>
  static T Run(T a, T b) {
    return a / b;
  }
};
struct MulAdd {
  template <class T>
  static T Run(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
// If one is NaN the result is the other; -0 is less than +0.
struct Min {
  template <class T>
  static T Run(T a, T b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T Run(T a, T b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
  }
};
struct Neg {
  template <class T>
  static T Run(T a) {
    return -a;
  }
};
struct Reciprocal {
  template <class T>
  static T Run(T a) {
    return 1 / a;
  }
};
struct SquareRoot {
  template <class T>
  static T Run(T a) {
    return std::sqrt(a);
  }
};
struct Exp2 {
  static float Run(float a) {
    return static_cast<float>(std::exp2(static_cast<double>(a)));
  }
};
struct Log2 {
  static float Run(float a) {
    return static_cast<float>(std::log2(static_cast<double>(a)));
  }
};
// .ftz: a subnormal is a zero with its sign, read or written.
float Flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value)
                                                : value;
}

void Write(Lane& lane, const Instruction& i, float value) {
  if (std::isnan(value)) {
    lane.Set(i.slots[0], kNaN32);
  } else {
    lane.Set(i.slots[0], value);
  }
}

template <class Op>
void RunUnary32(Lane& lane, const Instruction& i) {
  Write(lane, i, Op::Run(lane.Get<float>(i.slots[1])));
}
template <class Op>
void RunBinary32(Lane& lane, const Instruction& i) {
  Write(lane, i,
        Op::Run(lane.Get<float>(i.slots[1]), lane.Get<float>(i.slots[2])));
}
template <class Op>
void RunTernary32(Lane& lane, const Instruction& i) {
  Write(lane, i,
        Op::Run(lane.Get<float>(i.slots[1]), lane.Get<float>(i.slots[2]),
                lane.Get<float>(i.slots[3])));
}

template <class Op>
void RunFlushed(Lane& lane, const Instruction& i) {
  Write(lane, i, Flush(Op::Run(Flush(lane.Get<float>(i.slots[1])))));
}

// neg changes the sign bit, of NaN as well.
void RunNeg32(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0], lane.Get<uint32_t>(i.slots[1]) ^ 0x80000000);
}

template <class Op>
Handler Binary(bool is_double) {
  return is_double ? &RunBinary<double, Op> : &RunBinary32<Op>;
}

Handler HandlerOf(Arithmetic which, bool is_double) {
  switch (which) {
    case Arithmetic::kAdd:
      return Binary<Add>(is_double);
    case Arithmetic::kSub:
      return Binary<Sub>(is_double);
    case Arithmetic::kMul:
      return Binary<Mul>(is_double);
    case Arithmetic::kDiv:
      return Binary<Div>(is_double);
    case Arithmetic::kMin:
      return Binary<Min>(is_double);
    case Arithmetic::kMax:
      return Binary<Max>(is_double);
    case Arithmetic::kNeg:
      break;
  }
  return is_double ? &RunUnary<double, Neg> : &RunNeg32;
}

void DecodeMulAdd(Modifiers& m, Instruction& i) {
  m.Expect("rn");
  if (m.Take("f64")) {
    i.run = &RunTernary<double, MulAdd>;
  } else {
    m.Expect("f32");
    i.run = &RunTernary32<MulAdd>;
  }
}

// rcp and sqrt.
template <class Op>
void DecodeRoot(Modifiers& m, Instruction& i) {
  m.Expect("rn");
  if (m.Take("f64")) {
    i.run = &RunUnary<double, Op>;
  } else {
    m.Expect("f32");
    i.run = &RunUnary32<Op>;
  }
}

template <class Op>
void DecodeApproximate(Modifiers& m, Instruction& i) {
  m.Expect("approx");
  m.Expect("ftz");
  m.Expect("f32");
  i.run = &RunFlushed<Op>;
}

constexpr Opcode kFloatOpcodes[] = {
    {"fma", "dsss", &DecodeMulAdd},
    {"rcp", "ds", &DecodeRoot<Reciprocal>},
    {"sqrt", "ds", &DecodeRoot<SquareRoot>},
    {"ex2", "ds", &DecodeApproximate<Exp2>},
    {"lg2", "ds", &DecodeApproximate<Log2>},
};

}  // namespace

bool DecodeFloat(Arithmetic which, Modifiers& m, Instruction& i) {
  const bool is_double = m.TakeLast("f64");
  if (!is_double && !m.TakeLast("f32")) return false;
  if (which == Arithmetic::kDiv) {
    m.Expect("rn");
  } else if (which == Arithmetic::kAdd || which == Arithmetic::kSub ||
             which == Arithmetic::kMul) {
    m.Take("rn");
  }
  i.run = HandlerOf(which, is_double);
  return true;
}

std::span<const Opcode> FloatOpcodes() { return kFloatOpcodes; }

}  // namespace kvevict::ptx
