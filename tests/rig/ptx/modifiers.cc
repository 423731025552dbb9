#include "tests/rig/ptx/modifiers.h"

#include <algorithm>
#include <map>

#include "tests/rig/ptx/error.h"

namespace kvevict::ptx {

Modifiers::Modifiers(std::string_view opcode) {
  while (!opcode.empty()) {
    const size_t point = std::min(opcode.find('.'), opcode.size());
    parts_.emplace_back(opcode.substr(0, point));
    opcode.remove_prefix(std::min(point + 1, opcode.size()));
  }
  mnemonic_ = parts_.front();
  parts_.erase(parts_.begin());
}

bool Modifiers::Take(std::string_view modifier) {
  if (empty() || parts_[at_] != modifier) return false;
  ++at_;
  return true;
}

int Modifiers::TakeOneOf(std::initializer_list<std::string_view> list) {
  int index = 0;
  for (const std::string_view modifier : list) {
    if (Take(modifier)) return index;
    ++index;
  }
  return -1;
}

void Modifiers::Expect(std::string_view modifier) {
  if (!Take(modifier)) {
    Fail("expected ." + std::string(modifier) + " in " + mnemonic_);
  }
}

int Modifiers::ExpectOneOf(std::initializer_list<std::string_view> list) {
  const int index = TakeOneOf(list);
  if (index < 0) {
    Fail("unknown modifier '" + (empty() ? std::string() : parts_[at_]) +
         "' of " + mnemonic_);
  }
  return index;
}

Type Modifiers::ExpectType() {
  static const std::map<std::string, Type> kTypes = {
      {"pred", Type::kPred}, {"b8", Type::kB8},   {"u8", Type::kU8},
      {"s8", Type::kS8},     {"b16", Type::kB16}, {"u16", Type::kU16},
      {"s16", Type::kS16},   {"b32", Type::kB32}, {"u32", Type::kU32},
      {"s32", Type::kS32},   {"b64", Type::kB64}, {"u64", Type::kU64},
      {"s64", Type::kS64},   {"f16", Type::kF16}, {"f32", Type::kF32},
      {"f64", Type::kF64}};
  const auto found = empty() ? kTypes.end() : kTypes.find(parts_[at_]);
  if (found == kTypes.end()) {
    Fail("unknown modifier or type '" +
         (empty() ? std::string() : parts_[at_]) + "' of " + mnemonic_);
  }
  ++at_;
  return found->second;
}

Space Modifiers::TakeSpace() {
  static constexpr Space kSpaces[] = {Space::kNone, Space::kGlobal,
                                      Space::kShared, Space::kLocal,
                                      Space::kParam};
  return kSpaces[TakeOneOf({"global", "shared", "local", "param"}) + 1];
}

Scope Modifiers::ExpectScope() {
  return ExpectOneOf({"cta", "gpu"}) == 0 ? Scope::kBlock : Scope::kGpu;
}

bool Modifiers::TakeLast(std::string_view modifier) {
  if (empty() || parts_.back() != modifier) return false;
  parts_.pop_back();
  return true;
}

}  // namespace kvevict::ptx
