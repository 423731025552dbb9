// An instruction of sm_70 and later, as far as the gates read one. Positions of
// bits are from what nvdisasm of CUDA 11.8 and 12.4 says of sm_70 to sm_90; newer
// architectures are read like sm_90.
#ifndef KVEVICT_TESTS_CUDA_GATES_SASS_H_
#define KVEVICT_TESTS_CUDA_GATES_SASS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvevict::cuda {

// The low nine bits of an instruction. Alike from sm_70 to sm_120.
enum class Opcode : uint32_t {
  kHmma = 0x03c,  // tensor core, 16-bit
  kLdsm = 0x03b,
  kMufu = 0x108,  // exp2, log2, 1 / x
  kLdg = 0x181,   // global memory
  kStg = 0x186,
  kLdl = 0x183,  // local memory: spills, arrays that are indexed
  kStl = 0x187,
  kLdgsts = 0x1ae,  // cp.async
  kBar = 0x11d,     // of a block, with or without a reduction
  kMembar = 0x192,
  kCctl = 0x18f,  // CCTL.IVALL: forgets what the first cache holds
  kBra = 0x147,
  kBrx = 0x149,  // to an address in a register
  kExit = 0x14d,
  kRet = 0x150,
};

// For whom an access or a fence is ordered.
enum class Scope { kNone, kBlock, kGpu, kSystem };

struct SassInstruction {
  static constexpr unsigned kAlways = 7;  // the guard that holds

  uint64_t low;
  uint64_t high;

  Opcode opcode() const { return static_cast<Opcode>(low & 0x1ff); }
  // The predicate that has to hold, with a fourth bit if negated.
  unsigned guard() const { return low >> 12 & 15; }
  // Of memory instructions, as its logarithm less one: 4, 5, 6 for 32, 64, 128.
  unsigned width() const { return high >> 9 & 7; }

  // A scoreboard is up from the issue of an instruction until its result is
  // there; others wait for it before they issue.
  uint32_t waits_for() const { return high >> 52 & 63; }  // a bit each
  uint32_t puts_up() const {                              // a bit, or none
    const unsigned scoreboard = high >> 46 & 7;
    return scoreboard == 7 ? 0 : 1u << scoreboard;
  }

  // Of kLdg and kStg: STRONG of a scope; kNone of weak ones.
  Scope StrongScope(int sm) const;
  // Of kLdg: by the cache that is not coherent (.CONSTANT).
  bool IsConstant(int sm) const;
  // Of kMembar.
  Scope FenceScope() const;
};

// Places that may be executed after place `at`. Throws std::runtime_error where
// nobody can tell.
std::vector<size_t> NextPlaces(std::span<const SassInstruction> code, size_t at,
                               int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_SASS_H_
