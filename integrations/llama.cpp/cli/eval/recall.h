// What is left of the answers to a task's questions after evictions.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_RECALL_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_RECALL_H_

#include <span>
#include <vector>

#include "candidates.h"
#include "shared_prefill.h"
#include "tasks.h"
#include "windows.h"

namespace kvevict::llama_cli::eval {

struct TokenizedTask {
  std::vector<llama_token> context;
  struct Item {
    std::vector<llama_token> ask, prefix, answer;
  };
  std::vector<Item> questions;

  // The longest question with its answer.
  uint32_t Behind() const;
};

// In the model's chat template, if it has one that llama.cpp knows.
// A question as it stands behind a context.
std::vector<llama_token> TokenizeQuestion(const llama_model* model,
                                          const std::string& question);

TokenizedTask TokenizeTask(const llama_model* model, const Task& task);

// The share of bytes counts against the context. Every question is asked
// twice: seen, before the eviction, and unseen, after it.
Measured MeasureTask(SharedPrefill& prefill,
                     std::span<const Candidate> candidates,
                     const TokenizedTask& task);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_RECALL_H_
