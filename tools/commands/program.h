// The program behind main().
#ifndef KVEVICT_TOOLS_COMMANDS_PROGRAM_H_
#define KVEVICT_TOOLS_COMMANDS_PROGRAM_H_

#include <string>
#include <vector>

namespace kvevict::tools {

// Exit status of a command line that makes no sense.
inline constexpr int kUsageError = 2;

// Runs the program with its arguments, the program's name first. Returns the
// exit status. Throws all errors except those of the command line.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_PROGRAM_H_
