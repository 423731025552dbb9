#include "tools/commands/commands.h"

#include "kvevict/kvevict.h"

namespace kvevict::tools {

void AddCommands(CLI::App& app, Action& action) {
  app.name("kvevict");
  app.description("Shrinks the KV cache of LLM inference engines.");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("--version", kvevict_version(),
                       "Print the library's version and exit");
  AddDemoCommand(app, action);
  AddPlanCommand(app, action);
  AddReplayCommand(app, action);
  AddInspectCommand(app, action);
  AddCalibrationCommand(app, action);
}

}  // namespace kvevict::tools
