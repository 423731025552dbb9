// Values from one form to another: cvt, mov with its packing, cvta.
#include <cmath>
#include <limits>

#include "tests/rig/ptx/error.h"
#include "tests/rig/ptx/half.h"
#include "tests/rig/ptx/lanewise.h"
#include "tests/rig/ptx/opcodes.h"

namespace kvevict::ptx {
namespace {

// ---- cvt ----

enum Rounding : uint8_t { kNone, kRn, kRzi };

struct F16 {
  uint16_t bits;
};

// Converts into the range of T, clamped; NaN becomes 0.
template <class T>
T ClampToInteger(double value) {
  // One more than the highest is a power of two, hence exact.
  const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (std::isnan(value)) return 0;
  if (value >= above) return std::numeric_limits<T>::max();
  if (value <= static_cast<double>(std::numeric_limits<T>::lowest())) {
    return std::numeric_limits<T>::lowest();
  }
  return static_cast<T>(value);
}

template <class S>
double ReadFloat(const Lane& lane, Slot slot) {
  if constexpr (std::is_same_v<S, F16>) {
    return FromF16(lane.Get<uint16_t>(slot));
  } else {
    return lane.Get<S>(slot);
  }
}

template <class D, class S>
void RunConvert(Lane& lane, const Instruction& i) {
  const Slot from = i.slots[1];
  const Slot to = i.slots[0];
  if constexpr (std::is_integral_v<D> && std::is_integral_v<S>) {
    lane.Set(to, static_cast<D>(lane.Get<S>(from)));
  } else if constexpr (std::is_integral_v<D>) {
    lane.Set(to, ClampToInteger<D>(std::trunc(ReadFloat<S>(lane, from))));
  } else if constexpr (std::is_same_v<D, F16>) {
    lane.Set(to, ToF16(lane.Get<float>(from)));  // the decoder only accepts f32
  } else if constexpr (std::is_integral_v<S>) {
    // Straight to the type: by way of double it would round twice.
    lane.Set(to, static_cast<D>(lane.Get<S>(from)));
  } else {
    lane.Set(to, static_cast<D>(ReadFloat<S>(lane, from)));
  }
}

template <class Pick>
Handler ForAny(Type type, Pick pick) {
  if (type == Type::kF16) return pick(Tag<F16>());
  if (type == Type::kF32) return pick(Tag<float>());
  if (type == Type::kF64) return pick(Tag<double>());
  return ForAnyInteger(type, pick);
}

bool IsFloat(Type type) {
  return type == Type::kF16 || type == Type::kF32 || type == Type::kF64;
}

// Accepts the roundings that are implemented; the hardware has more.
void CheckRounding(Type to, Type from, Rounding rounding) {
  if (to == Type::kF16) {
    if (from != Type::kF32 || rounding != kRn) {
      Fail("cvt to a 16-bit float: only .rn from f32");
    }
  } else if (IsFloat(to) && IsFloat(from)) {
    const bool widens = from == Type::kF16 || to == Type::kF64;
    if (to == from || rounding != (widens ? kNone : kRn)) {
      Fail("cvt between floats with this rounding is not known");
    }
  } else if (IsFloat(to) && rounding != kRn) {
    Fail("cvt from an integer: only .rn");
  } else if (!IsFloat(to) && rounding != (IsFloat(from) ? kRzi : kNone)) {
    Fail("cvt to an integer: only .rzi from floats, else no rounding");
  }
}

void DecodeConvert(Modifiers& m, Instruction& i) {
  const auto rounding = static_cast<Rounding>(m.TakeOneOf({"rn", "rzi"}) + 1);
  const Type to = m.ExpectType();
  const Type from = m.ExpectType();
  CheckRounding(to, from, rounding);
  i.run = ForAny(to, [&](auto to_tag) -> Handler {
    return ForAny(from, [](auto from_tag) -> Handler {
      return &RunConvert<typename decltype(to_tag)::type,
                         typename decltype(from_tag)::type>;
    });
  });
}

// ---- mov ----

// One register of several parts: the first holds the lowest bits.
template <class Part>
void RunPack(Lane& lane, const Instruction& i) {
  uint64_t whole = 0;
  for (int k = 0; k < i.counts[1]; ++k) {
    whole |= uint64_t{lane.Get<Part>(i.slots[1 + k])} << 8 * sizeof(Part) * k;
  }
  lane.Set(i.slots[0], whole);
}

template <class Part>
void RunUnpack(Lane& lane, const Instruction& i) {
  const auto whole = lane.Get<uint64_t>(i.slots[i.counts[0]]);
  for (int k = 0; k < i.counts[0]; ++k) {
    lane.Set(i.slots[k], static_cast<Part>(whole >> 8 * sizeof(Part) * k));
  }
}

struct Same {
  template <class T>
  static T Run(T value) {
    return value;
  }
};

void DecodeMove(Modifiers& m, Instruction& i) {
  const Type type = m.ExpectType();
  const int parts = std::max(i.counts[0], i.counts[1]);
  const bool pack = i.counts[1] > 1;
  if (parts == 1) {
    i.run = type == Type::kPred  ? &RunUnary<uint8_t, Same>
            : type == Type::kF32 ? &RunUnary<uint32_t, Same>
            : type == Type::kF64 ? &RunUnary<uint64_t, Same>
                                 : UnaryOf<Same>(type);
    return;
  }
  const int bits = type == Type::kB32 ? 32 : type == Type::kB64 ? 64 : 0;
  if (bits / parts == 8) {
    i.run = pack ? &RunPack<uint8_t> : &RunUnpack<uint8_t>;
  } else if (bits / parts == 16) {
    i.run = pack ? &RunPack<uint16_t> : &RunUnpack<uint16_t>;
  } else if (bits / parts == 32) {
    i.run = pack ? &RunPack<uint32_t> : &RunUnpack<uint32_t>;
  } else {
    Fail("this mov of a vector is not known");
  }
}

// Global addresses are generic ones. Kernels that take pointers have these.
void DecodeGlobalAddress(Modifiers& m, Instruction& i) {
  m.Expect("to");
  m.Expect("global");
  m.Expect("u64");
  i.run = &RunUnary<uint64_t, Same>;
}

constexpr Opcode kConvertOpcodes[] = {
    {"cvt", "ds", &DecodeConvert},
    {"mov", "DS", &DecodeMove},
    {"cvta", "ds", &DecodeGlobalAddress},
};

}  // namespace

std::span<const Opcode> ConvertOpcodes() { return kConvertOpcodes; }

}  // namespace kvevict::ptx
