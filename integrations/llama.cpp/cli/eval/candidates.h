// The policies that are compared, each with every budget.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_CANDIDATES_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_CANDIDATES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy.h"

namespace kvevict::llama_cli::eval {

struct Candidate {
  std::string policy;   // a text without a budget
  double share = 0;     // of the prompt's bytes that stays
  uint32_t budget = 0;  // in tokens
  std::string text;     // the policy with the budget

  // Last queries that must be kept to score right after a prompt of n_prompt
  // tokens, also after n_behind more tokens were read and taken back.
  uint32_t QueryRows(uint32_t n_prompt, uint32_t n_behind) const;
};

struct Candidates {
  std::vector<Candidate> all;
  std::vector<std::string> left_out;  // those without room, with the reason
};

std::vector<std::string> DefaultPolicies();

// Throws if a policy cannot work in the engine, or if its text has a budget.
void CheckPolicies(std::span<const std::string> policies, Engine engine);

// Every policy with every budget that has room in a prompt.
Candidates MakeCandidates(std::span<const std::string> policies,
                          std::span<const double> shares, uint32_t n_prompt,
                          Engine engine);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_CANDIDATES_H_
