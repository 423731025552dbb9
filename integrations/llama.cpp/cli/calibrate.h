// `kvevict-llama-cli calibrate`: statistics of a model's queries, as a file.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_CALIBRATE_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_CALIBRATE_H_

namespace kvevict::llama_cli {

// argv[0] is "calibrate". Returns the exit status.
int Calibrate(int argc, char** argv);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_CALIBRATE_H_
