// What has been measured so far, as a JSON file that an interrupted run goes on
// with.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_RESULTS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_RESULTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "windows.h"

namespace kvevict::llama_cli::eval {

class Results {
 public:
  // Goes on with the file at `path`, if there is one. Throws if it is one of
  // another setup, or no such file.
  Results(std::string path, nlohmann::json setup);

  // The number of measured items of a kind: "windows", "tasks" or
  // "needles".
  size_t Count(const char* kind) const { return document_[kind].size(); }
  // Adds the next item and replaces the file.
  void Add(const char* kind, Measured item);
  void SetPeakBytes(uint64_t bytes);

  const nlohmann::json& document() const { return document_; }

 private:
  void Write() const;

  std::string path_;
  nlohmann::json document_;
};

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_RESULTS_H_
