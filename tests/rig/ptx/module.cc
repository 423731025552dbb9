#include "tests/rig/ptx/module.h"

#include <algorithm>
#include <cstring>

#include "tests/rig/ptx/decoder.h"
#include "tests/rig/ptx/parser.h"

namespace kvevict::ptx {

// Compilers declare a constant member of a class even where no code names it.
static bool IsNamedOnce(std::string_view ptx, std::string_view name) {
  return ptx.find(name, ptx.find(name) + name.size()) == std::string_view::npos;
}

Module::Module(std::string_view ptx, Memory& memory) : variables_{memory, {}} {
  const Syntax syntax = Parse(ptx);
  version_ = syntax.version;
  target_ = syntax.target;
  for (const Variable& variable : syntax.variables) {
    if (variable.space != Space::kGlobal) continue;
    if (IsNamedOnce(ptx, variable.name)) continue;
    const uint64_t address = memory.Allocate(variable.bytes);
    variables_.addresses[variable.name] = address;
    uint8_t* bytes = memory.At(address, variable.bytes);
    std::memset(bytes, 0, variable.bytes);
    std::copy(variable.initial.begin(), variable.initial.end(), bytes);
  }
  for (const Function& function : syntax.functions) {
    kernels_.push_back(Decode(syntax, function, variables_.addresses));
  }
}

Module::Variables::~Variables() {
  for (const auto& [name, address] : addresses) memory.Free(address);
}

const Kernel* Module::Find(std::string_view name) const {
  const auto found =
      std::find_if(kernels_.begin(), kernels_.end(),
                   [&](const Kernel& kernel) { return kernel.name == name; });
  return found == kernels_.end() ? nullptr : &*found;
}

}  // namespace kvevict::ptx
