// One thread of a running block: its registers, its program counter, and what
// it waits for.
#ifndef KVEVICT_TESTS_RIG_PTX_LANE_H_
#define KVEVICT_TESTS_RIG_PTX_LANE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tests/rig/ptx/instruction.h"
#include "tests/rig/ptx/order.h"

namespace kvevict::ptx {

class Block;

enum class LaneState : uint8_t {
  kRunning,
  kYielded,    // goes on after others had a turn
  kAtWarp,     // waits at a collective for the lanes of `mask`
  kAtBarrier,  // waits for the block
  kExited
};

struct Place {
  uint8_t* at;
  Space space;
};

class Lane {
 public:
  Block* block = nullptr;
  uint64_t* registers = nullptr;
  uint32_t thread = 0;  // in the block
  uint32_t pc = 0;      // of the next instruction
  uint32_t mask = 0;    // kAtWarp
  LaneState state = LaneState::kRunning;
  std::vector<uint8_t> local;

  // A cp.async that has been issued. The copy happens at the wait.
  struct Copy {
    uint8_t* to;
    uint64_t from;
    uint32_t valid_bytes;
    uint32_t bytes;
  };
  std::vector<std::vector<Copy>> committed;  // groups, oldest first
  std::vector<Copy> issued;                  // not committed yet

  // For each register that waits for an access, 1 + its number among those in
  // flight; and the number of such registers.
  uint16_t* awaited = nullptr;
  uint32_t n_awaited = 0;
  Knowledge known;  // acquired since the last barrier

  // Whether the access comes before what the thread does now.
  bool ComesAfter(const Mark& access) const;

  uint32_t warp() const { return thread / 32; }
  uint32_t index() const { return thread % 32; }  // in the warp

  template <class T>
  T Get(Slot slot) const {
    T value;
    std::memcpy(&value, &registers[slot], sizeof(T));
    return value;
  }
  bool GetPredicate(Slot slot) const { return (registers[slot] & 1) != 0; }

  // Integers are widened by their sign, so that wider readers see the value.
  template <class T>
  void Set(Slot slot, T value) {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      registers[slot] = static_cast<uint64_t>(static_cast<int64_t>(value));
    } else if constexpr (std::is_integral_v<T>) {
      registers[slot] = value;
    } else {
      registers[slot] = 0;
      std::memcpy(&registers[slot], &value, sizeof(T));
    }
  }

  // The bytes of an access after its checks of alignment and bounds. The access
  // is counted, and what comes before it is performed. Throws Error.
  Place Load(const Instruction& i, Space space, uint64_t address,
             uint32_t bytes);
  Place Store(const Instruction& i, Space space, uint64_t address,
              uint32_t bytes);
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_LANE_H_
