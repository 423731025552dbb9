// The program behind main().
#ifndef KVEVICT_TOOLS_COMMANDS_PROGRAM_H_
#define KVEVICT_TOOLS_COMMANDS_PROGRAM_H_

#include <string>
#include <vector>

namespace kvevict::tools {

// Exit status of a command line that makes no sense.
inline constexpr int kUsageError = 2;

// Does what the arguments ask for, the program's name first; returns the exit status.
// Throws what goes wrong behind the command line.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_PROGRAM_H_
