// Which policies the program can try, and which one it tries by itself.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_POLICY_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_POLICY_H_

#include <kvevict/experimental.h>

#include <cstdint>
#include <string>

#include "tools/engine/policy.h"

namespace kvevict::llama_cli {

// Parses a policy and resolves it for a prompt. Throws a sentence that names the
// policy, and the prompt where that is what it does not fit.
tools::Policy ParsePolicy(const std::string& text);
kvevict_resolved_policy Resolve(const std::string& text, uint32_t n_prompt);

// It weighs tokens by the model's own weights.
bool ReadsWeights(const tools::Policy& policy);

// A quarter of the prompt, with a window that leaves room in it.
std::string DefaultPolicy(uint32_t n_prompt);

// The names that cannot work in this program, with the reasons, in lines.
std::string PoliciesThatCannotWork();

// By which queries of a prompt it scores, as a sentence; "" if by none.
std::string ScoringQueries(const tools::Policy& policy, uint32_t n_prompt,
                           uint32_t query_rows);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_POLICY_H_
