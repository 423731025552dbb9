// A kernel ready to run: its instructions and the memory it declares.
#ifndef KVEVICT_TESTS_RIG_PTX_KERNEL_H_
#define KVEVICT_TESTS_RIG_PTX_KERNEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/rig/ptx/instruction.h"

namespace kvevict::ptx {

enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ
};

// Bytes of shared memory or parameters that may be touched.
struct Range {
  uint64_t begin;
  uint64_t end;
};

struct Kernel {
  // A null address must not be a shared variable.
  static constexpr uint64_t kSharedBegin = 1024;

  std::string name;
  std::vector<Instruction> code;
  std::vector<std::string> opcodes;  // opcodes of the instructions, as written

  // The register file of a lane when it starts; and the special registers that
  // differ from lane to lane.
  std::vector<uint64_t> registers;
  struct SpecialSlot {
    Slot slot;
    Special special;
  };
  std::vector<SpecialSlot> specials;

  uint64_t max_threads = 1024;
  std::vector<Range> params;
  uint64_t param_bytes = 0;
  uint64_t local_bytes = 0;
  std::vector<Range> shared;         // static variables, with gaps between them
  uint64_t static_shared_bytes = 0;  // without the gaps
  uint64_t dynamic_shared_begin = 0;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_KERNEL_H_
