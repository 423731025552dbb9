// Synthetic tasks after the kinds of RULER (arXiv:2404.06654): facts hidden in
// a text, chains of variables, words to count. A seed and a length give the
// same task everywhere.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TASKS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TASKS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "wording.h"

namespace kvevict::llama_cli::eval {

struct Question {
  std::string ask;
  // The answer begins with what it is about, so that a base model answers too.
  std::string prefix;
  std::string answer;
};

struct Task {
  std::string system;   // a message before it; "": none
  std::string context;  // an instruction, and the text with the facts
  std::vector<Question> questions;
};

std::vector<std::string> TaskKinds();

using CountTokens = std::function<uint32_t(const std::string&)>;

// A task of about n_tokens. `sentences` hide the facts, unless the wording has
// some. The kind `single` takes all its words from it.
Task MakeTask(const std::string& kind, uint64_t seed, uint32_t n_tokens,
              std::span<const std::string> sentences, const Wording& wording,
              const CountTokens& count);

// A single fact at a depth in the text, from 0 to 1.
Task MakeNeedle(double depth, uint64_t seed, uint32_t n_tokens,
                std::span<const std::string> sentences, const Wording& wording,
                const CountTokens& count);

// The sentences of a text, without those that are very short or long.
std::vector<std::string> Sentences(const std::string& text);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_TASKS_H_
