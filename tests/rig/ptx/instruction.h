// A decoded instruction. Every operand is a slot of the lane's register file:
// constants, addresses of symbols and special registers have slots as well, so
// that a handler reads all of them alike.
#ifndef KVEVICT_TESTS_RIG_PTX_INSTRUCTION_H_
#define KVEVICT_TESTS_RIG_PTX_INSTRUCTION_H_

#include <cstdint>

#include "tests/rig/ptx/order.h"
#include "tests/rig/ptx/syntax.h"

namespace kvevict::ptx {

class Lane;
class Warp;
struct Instruction;

// Executes for one lane.
using Handler = void (*)(Lane&, const Instruction&);
// Executes for all lanes of `mask`, which stand at this instruction.
using WarpHandler = void (*)(Warp&, const Instruction&, uint32_t mask);

using Slot = uint16_t;
constexpr Slot kNoSlot = 0xFFFF;
constexpr int kMaxSlots = 18;  // mma: 4 + 4 + 2 + 4
constexpr int kMaxOperands = 5;

// The first cache line has what every instruction needs.
struct alignas(64) Instruction {
  Handler run = nullptr;
  WarpHandler together = nullptr;  // collectives only; run then stops the lane
  Slot guard = kNoSlot;            // predicate that must hold
  bool guard_negated = false;
  bool source_negated = false;  // a predicate source written with "!"
  bool flag = false;            // what the handler makes of it
  uint8_t mode = 0;             // what the handler makes of it
  Space space = Space::kNone;
  uint8_t n_slots = 0;
  Slot slots[kMaxSlots] = {};         // of the operands, one after another
  uint8_t counts[kMaxOperands] = {};  // slots per operand
  Order order = Order::kWeak;         // order of an access
  Scope scope = Scope::kGpu;          // scope of a strong one
  int64_t offsets[2] = {};            // offsets of the first and second address
  uint32_t target = 0;                // of a branch
  uint32_t line = 0;
};

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_INSTRUCTION_H_
