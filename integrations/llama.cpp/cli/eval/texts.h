// The texts of an evaluation, as tokens.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TEXTS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TEXTS_H_

#include <llama.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvevict::llama_cli::eval {

struct Text {
  std::string name;   // of the file
  std::string bytes;  // without carriage returns
  std::vector<llama_token> tokens;
};

// Reads the files. A line end is one byte, since models see few others.
std::vector<Text> ReadTexts(const llama_vocab* vocab,
                            const std::vector<std::string>& paths);

// Name and content, so that results of another text are told apart.
nlohmann::json Describe(const std::vector<Text>& texts);

// Hash of the last MiB of a file, so that models of one size are told apart.
std::string HashOfEnd(const std::string& path);

struct Window {
  const Text* text = nullptr;
  size_t at = 0;                    // its first token
  std::vector<llama_token> tokens;  // after the model's BOS, if it wants one
};
// Windows in turn from every text. In a text one begins `stride` tokens after
// the other; 0: one after another. Throws if the texts are too short.
std::vector<Window> CutWindows(const llama_vocab* vocab,
                               const std::vector<Text>& texts, uint32_t n,
                               uint32_t n_tokens, size_t stride);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TEXTS_H_
