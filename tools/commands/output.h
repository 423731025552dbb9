// Standard output of a program: all of it arrives, or the program fails.
#ifndef KVEVICT_TOOLS_COMMANDS_OUTPUT_H_
#define KVEVICT_TOOLS_COMMANDS_OUTPUT_H_

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <system_error>

namespace kvevict::tools {

// Writes text to standard output. Throws std::system_error.
inline void WriteOutput(std::string_view text) {
  if (text.empty()) return;
  // A closed pipe is an error like others.
  std::signal(SIGPIPE, SIG_IGN);
  // Some files tell only when they are closed that they are full.
  const auto closes = [](int copy) { return copy >= 0 && close(copy) == 0; };
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
      std::fflush(stdout) != 0 || !closes(dup(STDOUT_FILENO))) {
    throw std::system_error(errno, std::generic_category(), "standard output");
  }
}

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_OUTPUT_H_
