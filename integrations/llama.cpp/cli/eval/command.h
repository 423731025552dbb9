// `kvevict-llama-cli eval`: policies and budgets on windows of a text and on
// tasks, as tables, as JSON and as a report with pictures.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_COMMAND_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_COMMAND_H_

namespace kvevict::llama_cli {

// argv[0] is "eval". Returns the exit status.
int Evaluate(int argc, char** argv);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_COMMAND_H_
