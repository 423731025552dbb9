// The opcodes that the executor knows, one row each. The decoder of a row takes
// the modifiers and chooses the handler.
#ifndef KVEVICT_TESTS_RIG_PTX_OPCODES_H_
#define KVEVICT_TESTS_RIG_PTX_OPCODES_H_

#include <cstdint>
#include <span>

#include "tests/rig/ptx/instruction.h"
#include "tests/rig/ptx/modifiers.h"

namespace kvevict::ptx {

struct Opcode {
  const char* mnemonic;  // with the first modifier if operands depend on it
  // A letter per operand, those after '?' may be left out:
  //   d destination, D destination or vector of them, q destination or
  //   destination|predicate (two slots), s source, S source or vector,
  //   p source predicate, may be negated, a address, x address or source,
  //   l label
  const char* operands;
  void (*decode)(Modifiers&, Instruction&);
  uint32_t min_target = 0;  // 80: sm_80 and later
};

// The opcodes of one file each.
std::span<const Opcode> IntegerOpcodes();
std::span<const Opcode> BitOpcodes();
std::span<const Opcode> FloatOpcodes();
std::span<const Opcode> CompareOpcodes();
std::span<const Opcode> ConvertOpcodes();
std::span<const Opcode> MemoryOpcodes();
std::span<const Opcode> AtomicOpcodes();
std::span<const Opcode> AsyncCopyOpcodes();
std::span<const Opcode> ControlOpcodes();
std::span<const Opcode> WarpOpcodes();
std::span<const Opcode> MatrixOpcodes();

// NULL if unknown. Takes the modifier that belongs to a mnemonic.
const Opcode* FindOpcode(Modifiers& modifiers);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_OPCODES_H_
