// Windows of a text: what both caches predict behind a prompt.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_WINDOWS_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_WINDOWS_H_

#include <nlohmann/json.hpp>
#include <span>

#include "candidates.h"
#include "shared_prefill.h"

namespace kvevict::llama_cli::eval {

struct Measured {
  nlohmann::json results;  // the same bytes for any number of threads
  nlohmann::json timings;
};

// Reads the first n_prompt tokens, evicts them by every candidate, and feeds
// the others in one batch. Every token but the first of these is predicted
// after the eviction. With n_decode the speed of decoding is measured too, by
// as many of them one by one, and the results tell which rows stayed.
Measured MeasureWindow(SharedPrefill& prefill,
                       std::span<const Candidate> candidates,
                       std::span<const llama_token> window, uint32_t n_prompt,
                       uint32_t n_decode);

}  // namespace kvevict::llama_cli::eval

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_EVAL_WINDOWS_H_
