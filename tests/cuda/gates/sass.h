// An instruction of sm_70 and later, as far as the gates read it. The positions
// of bits come from nvdisasm of CUDA 11.8 and 12.4 for sm_70 to sm_90. Newer
// architectures are read like sm_90.
#ifndef KVEVICT_TESTS_CUDA_GATES_SASS_H_
#define KVEVICT_TESTS_CUDA_GATES_SASS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvevict::cuda {

// The low nine bits of an instruction, alike from sm_70 to sm_120.
enum class Opcode : uint32_t {
  kHmma = 0x03c,  // tensor core, 16-bit
  kLdsm = 0x03b,
  kMufu = 0x108,  // exp2, log2, 1 / x
  kLdg = 0x181,   // global memory
  kStg = 0x186,
  kLdl = 0x183,  // local memory: spills, indexed arrays
  kStl = 0x187,
  kLdgsts = 0x1ae,  // cp.async
  kBar = 0x11d,     // barrier of a block, with or without a reduction
  kMembar = 0x192,
  kCctl = 0x18f,  // CCTL.IVALL: empties the first cache
  kBra = 0x147,
  kBrx = 0x149,  // branch to an address in a register
  kExit = 0x14d,
  kRet = 0x150,
};

// The threads for which an access or a fence is ordered.
enum class Scope { kNone, kBlock, kGpu, kSystem };

struct SassInstruction {
  static constexpr unsigned kAlways = 7;  // the guard that holds

  uint64_t low;
  uint64_t high;

  Opcode opcode() const { return static_cast<Opcode>(low & 0x1ff); }
  // The predicate that must hold, with a fourth bit if negated.
  unsigned guard() const { return low >> 12 & 15; }
  // The width of a memory instruction as its logarithm less one: 4, 5, 6 for 32, 64, 128.
  unsigned width() const { return high >> 9 & 7; }

  // A scoreboard is up from the issue of an instruction until its result is
  // there. Others wait for it before they issue.
  uint32_t waits_for() const { return high >> 52 & 63; }  // one bit each
  uint32_t puts_up() const {                              // one bit, or none
    const unsigned scoreboard = high >> 46 & 7;
    return scoreboard == 7 ? 0 : 1u << scoreboard;
  }

  // The scope of a STRONG kLdg or kStg; kNone for weak ones.
  Scope StrongScope(int sm) const;
  // Whether a kLdg goes by the cache that is not coherent (.CONSTANT).
  bool IsConstant(int sm) const;
  // The scope of a kMembar.
  Scope FenceScope() const;
};

// The places that may be executed after place `at`. Throws std::runtime_error
// if they cannot be found.
std::vector<size_t> NextPlaces(std::span<const SassInstruction> code, size_t at,
                               int sm);

}  // namespace kvevict::cuda

#endif  // KVEVICT_TESTS_CUDA_GATES_SASS_H_
