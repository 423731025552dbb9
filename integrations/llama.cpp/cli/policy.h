// The policies that the program can try, and its default.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_POLICY_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_POLICY_H_

#include <kvevict/experimental.h>

#include <cstdint>
#include <string>

#include "tools/engine/policy.h"

namespace kvevict::llama_cli {

// What runs the model. The heads and layers of llama.cpp's cache hold equally
// many tokens, those of kvevict's own engine need not. A calibrated llama.cpp
// has the file of --calibration.
enum class Engine { kLlamaCpp, kCalibratedLlamaCpp, kKvevict };

// Parse a policy, and resolve one for a prompt. They throw a sentence that
// names the policy, and the prompt if it does not fit that.
tools::Policy ParsePolicy(const std::string& text,
                          Engine engine = Engine::kLlamaCpp);
kvevict_resolved_policy Resolve(const std::string& text, uint32_t n_prompt,
                                Engine engine = Engine::kLlamaCpp);

// True if the policy weights tokens by the model's own weights.
bool ReadsWeights(const tools::Policy& policy);

// The default policy: a quarter of the prompt, with a window that leaves room
// in it.
std::string DefaultPolicy(uint32_t n_prompt);

// The policies that cannot work in this program, with reasons, one per line.
std::string PoliciesThatCannotWork();

// The queries of a prompt that score, as a sentence; "" if none do.
std::string ScoringQueries(const tools::Policy& policy, uint32_t n_prompt,
                           uint32_t query_rows);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_POLICY_H_
