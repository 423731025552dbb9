// Decodes syntax into kernels.
#ifndef KVEVICT_TESTS_RIG_PTX_DECODER_H_
#define KVEVICT_TESTS_RIG_PTX_DECODER_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/rig/ptx/kernel.h"
#include "tests/rig/ptx/syntax.h"

namespace kvevict::ptx {

// `globals`: addresses of the module's .global and .const variables. Throws
// Error, with the line, at an opcode, modifier or operand that is not known.
Kernel Decode(const Syntax& syntax, const Function& function,
              const std::map<std::string, uint64_t>& globals);

}  // namespace kvevict::ptx

#endif  // KVEVICT_TESTS_RIG_PTX_DECODER_H_
