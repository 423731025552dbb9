// Which rows an eviction kept, small enough for a file of results.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_KEPT_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_KEPT_H_

#include <nlohmann/json.hpp>

#include "kvevict/kvevict.h"

namespace kvevict::llama_cli::eval {

// "shares": for each layer, in up to 64 parts of the prompt, the share of its
// rows that stayed, mean over KV heads. "rows": for each layer and KV head, how
// many stayed.
nlohmann::json KeptRows(const kvevict_sequence* sequence, uint32_t n_prompt);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_KEPT_H_
