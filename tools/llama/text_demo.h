// `kvevict demo --model FILE --text FILE`.
#ifndef KVEVICT_TOOLS_LLAMA_TEXT_DEMO_H_
#define KVEVICT_TOOLS_LLAMA_TEXT_DEMO_H_

#include <string>

#include "tools/commands/demo_options.h"

namespace kvevict::tools {

// Prefills the text's first tokens through the model, evicts by every policy,
// feeds the tokens that follow and compares the predictions with the full
// cache's. Returns a table, or with options.json one document; throws
// std::runtime_error for bad files, options and policies.
std::string RunTextDemo(const DemoOptions& options);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_LLAMA_TEXT_DEMO_H_
