#include "tests/rig/ptx/opcodes.h"

#include <map>
#include <string>

namespace kvevict::ptx {

const Opcode* FindOpcode(Modifiers& modifiers) {
  static const auto* kAll = [] {
    auto* all = new std::map<std::string, const Opcode*>();
    for (const auto list : {IntegerOpcodes(), BitOpcodes(), FloatOpcodes(),
                            CompareOpcodes(), ConvertOpcodes(), MemoryOpcodes(),
                            AtomicOpcodes(), AsyncCopyOpcodes(),
                            ControlOpcodes(), WarpOpcodes(), MatrixOpcodes()}) {
      for (const Opcode& opcode : list) (*all)[opcode.mnemonic] = &opcode;
    }
    return all;
  }();
  const auto longer =
      kAll->find(modifiers.mnemonic() + "." + modifiers.first());
  if (longer != kAll->end()) {
    modifiers.Take(modifiers.first());
    return longer->second;
  }
  const auto found = kAll->find(modifiers.mnemonic());
  return found == kAll->end() ? nullptr : found->second;
}

}  // namespace kvevict::ptx
