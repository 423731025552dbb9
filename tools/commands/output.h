// Standard output of a program. Either all of it arrives or the program fails.
#ifndef KVEVICT_TOOLS_COMMANDS_OUTPUT_H_
#define KVEVICT_TOOLS_COMMANDS_OUTPUT_H_

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "tools/engine/platform.h"

namespace kvevict::tools {

// Writes text to standard output. Throws std::system_error.
inline void WriteOutput(std::string_view text) {
  if (text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
      std::fflush(stdout) != 0 || !OutputArrives()) {
    throw std::system_error(errno, std::generic_category(), "standard output");
  }
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_OUTPUT_H_
