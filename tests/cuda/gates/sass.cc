#include "tests/cuda/gates/sass.h"

#include <stdexcept>
#include <string>

namespace kvevict::cuda {
namespace {

// Sign-extends the low n bits.
int64_t Signed(uint64_t bits, int n) {
  return static_cast<int64_t>(bits << (64 - n)) >> (64 - n);
}

// The distance in bytes from the instruction after the branch.
int64_t BranchDistance(const SassInstruction& i, int sm) {
  const uint64_t upper = i.low >> 34 | (i.high & 0x3ffff) << 30;  // 48 bits
  if (sm < 90) return 4 * Signed(upper, 48);
  return 4 * Signed(upper << 8 | (i.low >> 16 & 0xff), 56);
}

}  // namespace

// Bits 77 to 80 are two of scope and two of order up to sm_75, and one number
// for both from sm_80 on.
Scope SassInstruction::StrongScope(int sm) const {
  const unsigned order = high >> 13 & 15;
  if (sm < 80) {
    if (order >> 2 != 2) return Scope::kNone;
    return (order & 3) == 3   ? Scope::kSystem
           : (order & 3) == 2 ? Scope::kGpu
                              : Scope::kBlock;
  }
  return order == 10  ? Scope::kSystem
         : order == 7 ? Scope::kGpu
         : order == 5 ? Scope::kBlock
                      : Scope::kNone;
}

bool SassInstruction::IsConstant(int sm) const {
  const unsigned order = high >> 13 & 15;
  return sm < 80 ? order >> 2 == 0 : order == 4;
}

Scope SassInstruction::FenceScope() const {
  const unsigned scope = high >> 12 & 3;
  return scope == 3 ? Scope::kSystem : scope == 2 ? Scope::kGpu : Scope::kBlock;
}

std::vector<size_t> NextPlaces(std::span<const SassInstruction> code, size_t at,
                               int sm) {
  const SassInstruction& i = code[at];
  // Branches have a second predicate.
  const bool is_certain =
      i.guard() == SassInstruction::kAlways &&
      (i.opcode() != Opcode::kBra || (i.high >> 23 & 15) == 7);
  std::vector<size_t> next;
  switch (i.opcode()) {
    case Opcode::kBrx:
      throw std::runtime_error("a branch to an address in a register");
    case Opcode::kExit:
    case Opcode::kRet:
      break;
    case Opcode::kBra: {
      const int64_t target =
          static_cast<int64_t>(at + 1) * 16 + BranchDistance(i, sm);
      if (target < 0 || target % 16 != 0 ||
          static_cast<size_t>(target) / 16 >= code.size()) {
        throw std::runtime_error("a branch at " + std::to_string(16 * at) +
                                 " to " + std::to_string(target));
      }
      next.push_back(static_cast<size_t>(target) / 16);
      break;
    }
    default:
      if (at + 1 < code.size()) next.push_back(at + 1);
      return next;
  }
  if (!is_certain && at + 1 < code.size()) next.push_back(at + 1);
  return next;
}

}  // namespace kvevict::cuda
