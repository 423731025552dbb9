// The arguments that the program's commands share, and what comes of them.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_ARGUMENTS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_ARGUMENTS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "upstream.h"

namespace kvevict::llama_cli {

// More than any model was trained for.
inline constexpr uint32_t kMostCells = 1 << 24;

struct ModelArguments {
  std::string model, backends, cache_type = "f16";
  std::string calibration_file;
  std::string calibration;  // its bytes, to which `context` points
  int32_t n_gpu_layers = 0;
  bool no_flash = false, verbose = false;
  ContextOptions context;
};

void AddModelOptions(CLI::App& app, ModelArguments& args);

// Reads the file when the command line is parsed.
CLI::Option* AddCalibrationOption(CLI::App& app, ModelArguments& args);

// Parses the command line and completes `args`. Returns the exit status if the
// program is to end: after --help, and with a message for wrong arguments.
std::optional<int> Parse(CLI::App& app, int argc, char** argv,
                         ModelArguments& args);

// Loads the model. Policies that read its weights cannot read repacked ones.
Model Load(const ModelArguments& args, bool reads_weights);

// The bytes of a file. Throws if there are none.
std::string ReadText(const std::string& path);

std::vector<llama_token> Tokenize(const llama_vocab* vocab,
                                  const std::string& text, bool add_special,
                                  bool parse_special);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_ARGUMENTS_H_
