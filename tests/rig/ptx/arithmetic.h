// Opcodes that integers and floats share (add, mul, fma ...). The modifiers tell
// them apart, and the integers' decoder passes floats on.
#ifndef KVEVICT_TESTS_RIG_PTX_ARITHMETIC_H_
#define KVEVICT_TESTS_RIG_PTX_ARITHMETIC_H_

#include "tests/rig/ptx/instruction.h"
#include "tests/rig/ptx/modifiers.h"

namespace kvevict::ptx {

enum class Arithmetic { kAdd, kSub, kMul, kDiv, kMin, kMax, kNeg };

// Takes [.rounding] and the type if it is a float's. Otherwise takes
// nothing and returns false.
bool DecodeFloat(Arithmetic which, Modifiers& m, Instruction& i);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_ARITHMETIC_H_
