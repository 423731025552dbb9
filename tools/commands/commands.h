// The program's commands. The one that the user chose sets `action`.
#ifndef KVEVICT_TOOLS_COMMANDS_COMMANDS_H_
#define KVEVICT_TOOLS_COMMANDS_COMMANDS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace kvevict::tools {

using Action = std::function<std::string()>;  // returns what to print

// Names the program and adds all of its commands.
void AddCommands(CLI::App& app, Action& action);

void AddCalibrationCommand(CLI::App& app, Action& action);
void AddDemoCommand(CLI::App& app, Action& action);
void AddInspectCommand(CLI::App& app, Action& action);
void AddPlanCommand(CLI::App& app, Action& action);
void AddReplayCommand(CLI::App& app, Action& action);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_COMMANDS_H_
