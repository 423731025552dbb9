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

enum Rounding : uint8_t { kNone, kRn, kRz, kRm, kRp, kRni, kRzi, kRmi, kRpi };
constexpr uint8_t kFtz = 16;  // in `mode`, beside the rounding; flag: .sat

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

uint8_t RoundingOf(const Instruction& i) { return i.mode & 15; }

double RoundToInteger(double value, uint8_t rounding) {
  switch (rounding) {
    case kRni:
      return std::nearbyint(value);
    case kRzi:
      return std::trunc(value);
    case kRmi:
      return std::floor(value);
    case kRpi:
      return std::ceil(value);
    default:
      return value;
  }
}

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

float FlushIf(bool flush, float value) {
  return flush && std::fpclassify(value) == FP_SUBNORMAL
             ? std::copysign(0.0f, value)
             : value;
}

template <class S>
double ReadFloat(const Lane& lane, const Instruction& i) {
  const Slot slot = i.slots[1];
  if constexpr (std::is_same_v<S, F16>) {
    return FromF16(lane.Get<uint16_t>(slot));
  } else if constexpr (std::is_same_v<S, BF16>) {
    return FromBF16(lane.Get<uint16_t>(slot));
  } else if constexpr (std::is_same_v<S, float>) {
    return FlushIf((i.mode & kFtz) != 0, lane.Get<float>(slot));
  } else {
    return lane.Get<double>(slot);
  }
}

template <class D>
void WriteFloat(Lane& lane, const Instruction& i, double value) {
  if (i.flag) value = value > 0.0 ? std::fmin(value, 1.0) : 0.0;
  const bool toward_zero = RoundingOf(i) == kRz;
  // The decoder only accepts sources that are exact in f32.
  const auto single = static_cast<float>(value);
  if constexpr (std::is_same_v<D, F16>) {
    lane.Set(i.slots[0], ToF16(single, toward_zero));
  } else if constexpr (std::is_same_v<D, BF16>) {
    lane.Set(i.slots[0], ToBF16(single, toward_zero));
  } else if constexpr (std::is_same_v<D, float>) {
    lane.Set(i.slots[0], FlushIf((i.mode & kFtz) != 0, single));
  } else {
    lane.Set(i.slots[0], value);
  }
}

template <class T>
T SaturateInteger(__int128 value) {
  if (value < std::numeric_limits<T>::lowest()) {
    return std::numeric_limits<T>::lowest();
  }
  if (value > std::numeric_limits<T>::max()) {
    return std::numeric_limits<T>::max();
  }
  return static_cast<T>(value);
}

template <class D, class S>
void RunConvert(Lane& lane, const Instruction& i) {
  if constexpr (std::is_integral_v<D> && std::is_integral_v<S>) {
    const S value = lane.Get<S>(i.slots[1]);
    lane.Set(i.slots[0],
             i.flag ? SaturateInteger<D>(value) : static_cast<D>(value));
  } else if constexpr (std::is_integral_v<D>) {
    const double value = ReadFloat<S>(lane, i);
    lane.Set(i.slots[0],
             ClampToInteger<D>(RoundToInteger(value, RoundingOf(i))));
  } else if constexpr (std::is_integral_v<S>) {
    const S value = lane.Get<S>(i.slots[1]);
    // Converts straight to the type: by way of double it would round twice.
    if constexpr (std::is_same_v<D, float>) {
      lane.Set(i.slots[0], static_cast<float>(value));
    } else {
      WriteFloat<D>(lane, i, static_cast<double>(value));
    }
  } else {
    WriteFloat<D>(lane, i,
                  RoundToInteger(ReadFloat<S>(lane, i), RoundingOf(i)));
  }
}

template <class Pick>
Handler ForAny(Type type, Pick pick) {
  if (type == Type::kF16) return pick(Tag<F16>());
  if (type == Type::kBF16) return pick(Tag<BF16>());
  if (type == Type::kF32) return pick(Tag<float>());
  if (type == Type::kF64) return pick(Tag<double>());
  return ForAnyInteger(type, pick);
}

bool IsHalf(Type type) { return type == Type::kF16 || type == Type::kBF16; }
bool IsFloat(Type type) {
  return IsHalf(type) || type == Type::kF32 || type == Type::kF64;
}

// Accepts the roundings that are implemented; the hardware has more.
void CheckRounding(Type to, Type from, uint8_t rounding) {
  if (IsHalf(to)) {
    if (from != Type::kF32 || (rounding != kRn && rounding != kRz)) {
      Fail("cvt to a 16-bit float: only .rn and .rz from f32");
    }
  } else if (IsFloat(to) && IsFloat(from)) {
    const bool widens = IsHalf(from) || to == Type::kF64;
    const bool integral = to == from && rounding >= kRni;
    const bool right = to == from ? integral || rounding == kNone
                       : widens   ? rounding == kNone
                                  : rounding == kRn;
    if (!right) Fail("cvt between floats with this rounding is not known");
  } else if (IsFloat(to) && rounding != kRn) {
    Fail("cvt from an integer: only .rn");
  } else if (!IsFloat(to) && IsFloat(from) && rounding < kRni) {
    Fail("cvt to an integer needs .rni, .rzi, .rmi or .rpi");
  } else if (!IsFloat(to) && !IsFloat(from) && rounding != kNone) {
    Fail("cvt between integers does not round");
  }
}

// d = {low: b, high: a}
template <uint16_t (*kTo)(float, bool)>
void RunPackHalves(Lane& lane, const Instruction& i) {
  const bool toward_zero = RoundingOf(i) == kRz;
  const uint32_t high = kTo(lane.Get<float>(i.slots[1]), toward_zero);
  const uint32_t low = kTo(lane.Get<float>(i.slots[2]), toward_zero);
  lane.Set(i.slots[0], high << 16 | low);
}

void DecodeConvert(Modifiers& m, Instruction& i) {
  const int rounding =
      m.TakeOneOf({"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"}) + 1;
  i.mode = static_cast<uint8_t>(rounding);
  if (m.Take("ftz")) i.mode |= kFtz;
  i.flag = m.Take("sat");
  const Type to = m.ExpectType();
  const Type from = m.ExpectType();
  if (to == Type::kF16x2 || to == Type::kBF16x2) {
    if (from != Type::kF32 || i.counts[2] != 1 || i.flag ||
        (rounding != kRn && rounding != kRz)) {
      Fail("this conversion to two halves is not known");
    }
    i.run =
        to == Type::kF16x2 ? &RunPackHalves<&ToF16> : &RunPackHalves<&ToBF16>;
    return;
  }
  if (i.counts[2] != 0) Fail("too many operands");
  CheckRounding(to, from, static_cast<uint8_t>(rounding));
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

// ---- cvta ----

uint64_t WindowOf(Space space) {
  switch (space) {
    case Space::kShared:
      return kSharedWindow;
    case Space::kLocal:
      return kLocalWindow;
    case Space::kParam:
      return kParamWindow;
    case Space::kGlobal:
    case Space::kConst:
      return 0;
    default:
      Fail("cvta needs a space");
  }
}

// offsets[0] is added.
void RunConvertAddress(Lane& lane, const Instruction& i) {
  lane.Set(i.slots[0], lane.Get<uint64_t>(i.slots[1]) +
                           static_cast<uint64_t>(i.offsets[0]));
}

void DecodeConvertAddress(Modifiers& m, Instruction& i) {
  const bool to = m.Take("to");
  const uint64_t window = WindowOf(m.TakeSpace());
  m.Expect("u64");
  i.offsets[0] = static_cast<int64_t>(to ? 0 - window : window);
  i.run = &RunConvertAddress;
}

constexpr Opcode kOpcodes[] = {
    {"cvt", "ds?s", &DecodeConvert},
    {"mov", "DS", &DecodeMove},
    {"cvta", "ds", &DecodeConvertAddress},
};

}  // namespace

std::span<const Opcode> ConvertOpcodes() { return kOpcodes; }

}  // namespace kvevict::ptx
