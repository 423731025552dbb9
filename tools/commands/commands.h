// The program's commands. Each function adds one to the command line; if the user
// chose it, `action` is what to do.
#ifndef KVEVICT_TOOLS_COMMANDS_COMMANDS_H_
#define KVEVICT_TOOLS_COMMANDS_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>

namespace kvevict::tools {

// Exit status of a command line that makes no sense.
inline constexpr int kUsageError = 2;

using Action = std::function<int()>;  // returns the exit status

void AddDemoCommand(CLI::App& app, Action& action);
void AddInspectCommand(CLI::App& app, Action& action);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_COMMANDS_H_
