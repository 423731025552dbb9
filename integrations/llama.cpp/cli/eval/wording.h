// The words of the `single` tasks, which a file may replace.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_WORDING_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_WORDING_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvevict::llama_cli::eval {

// {adjective} and {noun} are the key of a fact, {number} is its number.
struct Wording {
  std::string system;  // a system message before the text; "": none
  std::string introduction =
      "Some facts are hidden in the following text. Remember them: you will be "
      "asked about them afterwards.";
  std::string fact = "The secret number of the {adjective} {noun} is {number}.";
  std::string question = "What is the secret number of the {adjective} {noun}?";
  // The answer's first words. A space at its end, since the first token of many
  // numbers would be a bare space.
  std::string answer = "The secret number of the {adjective} {noun} is ";
  // Sentences that hide the facts, over and over; empty: those of the texts.
  std::vector<std::string> haystack;
};

// Reads a JSON object with some of these members; the others stay as they are.
// Throws a sentence with the path.
Wording ReadWording(const std::string& path);

nlohmann::json Describe(const Wording& wording);

// Puts the words into a template.
std::string Fill(std::string text, const std::string& adjective,
                 const std::string& noun, const std::string& number);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_WORDING_H_
