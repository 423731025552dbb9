// The types at the end of an opcode.
#ifndef KVEVICT_TESTS_RIG_PTX_TYPES_H_
#define KVEVICT_TESTS_RIG_PTX_TYPES_H_

#include <cstdint>
#include <string>

#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {

enum class Type : uint8_t {
  kPred,
  kB8,
  kU8,
  kS8,
  kB16,
  kU16,
  kS16,
  kB32,
  kU32,
  kS32,
  kB64,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64
};

// Stands for a C++ type in an argument.
template <class T>
struct Tag {
  using type = T;
};

// Calls pick(Tag<T>) for the C++ type of an integer of 16, 32 or 64 bits; bits
// without a sign are unsigned.
template <class Pick>
auto ForInteger(Type type, Pick pick) -> decltype(pick(Tag<uint32_t>())) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return pick(Tag<uint16_t>());
    case Type::kS16:
      return pick(Tag<int16_t>());
    case Type::kB32:
    case Type::kU32:
      return pick(Tag<uint32_t>());
    case Type::kS32:
      return pick(Tag<int32_t>());
    case Type::kB64:
    case Type::kU64:
      return pick(Tag<uint64_t>());
    case Type::kS64:
      return pick(Tag<int64_t>());
    default:
      Fail("this type does not go with this opcode");
  }
}

// The same with integers of 8 bits.
template <class Pick>
auto ForAnyInteger(Type type, Pick pick) -> decltype(pick(Tag<uint32_t>())) {
  if (type == Type::kB8 || type == Type::kU8) return pick(Tag<uint8_t>());
  if (type == Type::kS8) return pick(Tag<int8_t>());
  return ForInteger(type, pick);
}

// The same with float and double.
template <class Pick>
auto ForNumber(Type type, Pick pick) -> decltype(pick(Tag<uint32_t>())) {
  if (type == Type::kF32) return pick(Tag<float>());
  if (type == Type::kF64) return pick(Tag<double>());
  return ForInteger(type, pick);
}

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_TYPES_H_
