// `kvevict demo` without a model file.
#ifndef KVEVICT_TOOLS_COMMANDS_RECALL_DEMO_H_
#define KVEVICT_TOOLS_COMMANDS_RECALL_DEMO_H_

#include <string>

#include "tools/commands/demo_options.h"

namespace kvevict::tools {

// Runs the recall experiment. Returns a table, or with options.json one
// document; throws std::invalid_argument for a prompt length the model cannot
// serve, KvevictError for bad policies.
std::string RunRecallDemo(const DemoOptions& options);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_COMMANDS_RECALL_DEMO_H_
