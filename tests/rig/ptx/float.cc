// Float arithmetic. Results are rounded to nearest even; the approximate
// functions are rounded from double precision, so they are at least as exact as
// the hardware's.
#include <bit>
#include <cmath>
#include <limits>

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
template <class Op>
struct OrNaN {
  template <class T>
  static T Run(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN()
                                          : Op::Run(a, b);
  }
};
struct Abs {
  template <class T>
  static T Run(T a) {
    return std::fabs(a);
  }
};
struct Neg {
  template <class T>
  static T Run(T a) {
    return -a;
  }
};
struct CopySign {
  template <class T>
  static T Run(T sign, T magnitude) {
    return std::copysign(magnitude, sign);
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
struct ReciprocalRoot {
  static float Run(float a) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a)));
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
struct Sine {
  static float Run(float a) {
    return static_cast<float>(std::sin(static_cast<double>(a)));
  }
};
struct Cosine {
  static float Run(float a) {
    return static_cast<float>(std::cos(static_cast<double>(a)));
  }
};

// .ftz: a subnormal is a zero with its sign, read or written.
float Flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value)
                                                : value;
}

enum Mode : uint8_t { kPlain = 0, kFtz = 1, kSaturate = 2 };

inline float Read(const Lane& lane, const Instruction& i, int operand) {
  const auto value = lane.Get<float>(i.slots[operand]);
  return (i.mode & kFtz) != 0 ? Flush(value) : value;
}

inline void Write(Lane& lane, const Instruction& i, float value) {
  if ((i.mode & kFtz) != 0) value = Flush(value);
  if ((i.mode & kSaturate) != 0) {
    value = value > 0.0f ? std::fmin(value, 1.0f) : 0.0f;  // NaN: 0
  }
  if (std::isnan(value)) {
    lane.Set(i.slots[0], kNaN32);
  } else {
    lane.Set(i.slots[0], value);
  }
}

// f32 operations with or without modes.
template <class Op>
void RunUnary32(Lane& lane, const Instruction& i) {
  Write(lane, i, Op::Run(Read(lane, i, 1)));
}
template <class Op>
void RunBinary32(Lane& lane, const Instruction& i) {
  Write(lane, i, Op::Run(Read(lane, i, 1), Read(lane, i, 2)));
}
template <class Op>
void RunTernary32(Lane& lane, const Instruction& i) {
  Write(lane, i, Op::Run(Read(lane, i, 1), Read(lane, i, 2), Read(lane, i, 3)));
}

// abs and neg change the sign bit, of NaN as well.
template <uint32_t kAnd, uint32_t kXor>
void RunSign32(Lane& lane, const Instruction& i) {
  auto bits = lane.Get<uint32_t>(i.slots[1]);
  if ((i.mode & kFtz) != 0) {
    bits = std::bit_cast<uint32_t>(Flush(std::bit_cast<float>(bits)));
  }
  lane.Set(i.slots[0], (bits & kAnd) ^ kXor);
}

template <class Op>
Handler Binary(bool is_double) {
  return is_double ? &RunBinary<double, Op> : &RunBinary32<Op>;
}

Handler HandlerOf(Arithmetic which, bool is_double, bool propagate_nan) {
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
      return propagate_nan ? Binary<OrNaN<Min>>(is_double)
                           : Binary<Min>(is_double);
    case Arithmetic::kMax:
      return propagate_nan ? Binary<OrNaN<Max>>(is_double)
                           : Binary<Max>(is_double);
    case Arithmetic::kAbs:
      return is_double ? &RunUnary<double, Abs> : &RunSign32<0x7FFFFFFF, 0>;
    case Arithmetic::kNeg:
      break;
  }
  return is_double ? &RunUnary<double, Neg>
                   : &RunSign32<0xFFFFFFFF, 0x80000000>;
}

void TakeModes(Modifiers& m, Instruction& i) {
  if (m.Take("ftz")) i.mode |= kFtz;
  if (m.Take("sat")) i.mode |= kSaturate;
}

void DecodeMulAdd(Modifiers& m, Instruction& i) {
  m.Expect("rn");
  TakeModes(m, i);
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
  m.ExpectOneOf({"rn", "approx"});
  TakeModes(m, i);
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
  TakeModes(m, i);
  m.Expect("f32");
  i.run = &RunUnary32<Op>;
}

void DecodeCopySign(Modifiers& m, Instruction& i) {
  i.run = m.ExpectOneOf({"f32", "f64"}) == 0 ? &RunBinary<float, CopySign>
                                             : &RunBinary<double, CopySign>;
}

constexpr Opcode kOpcodes[] = {
    {"fma", "dsss", &DecodeMulAdd},
    {"rcp", "ds", &DecodeRoot<Reciprocal>},
    {"sqrt", "ds", &DecodeRoot<SquareRoot>},
    {"rsqrt", "ds", &DecodeApproximate<ReciprocalRoot>},
    {"ex2", "ds", &DecodeApproximate<Exp2>},
    {"lg2", "ds", &DecodeApproximate<Log2>},
    {"sin", "ds", &DecodeApproximate<Sine>},
    {"cos", "ds", &DecodeApproximate<Cosine>},
    {"copysign", "dss", &DecodeCopySign},
};

}  // namespace

bool DecodeFloat(Arithmetic which, Modifiers& m, Instruction& i) {
  const bool is_double = m.TakeLast("f64");
  if (!is_double && !m.TakeLast("f32")) return false;
  if (which == Arithmetic::kDiv) {
    m.ExpectOneOf({"rn", "full", "approx"});
  } else if (which == Arithmetic::kAdd || which == Arithmetic::kSub ||
             which == Arithmetic::kMul) {
    m.Take("rn");
  }
  TakeModes(m, i);
  const bool propagate_nan =
      (which == Arithmetic::kMin || which == Arithmetic::kMax) && m.Take("NaN");
  i.run = HandlerOf(which, is_double, propagate_nan);
  return true;
}

std::span<const Opcode> FloatOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
