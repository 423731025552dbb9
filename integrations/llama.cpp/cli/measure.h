// A prompt, what follows it, and what an eviction between the two costs and
// changes.
#ifndef KVEVICT_INTEGRATIONS_LLAMA_CLI_MEASURE_H_
#define KVEVICT_INTEGRATIONS_LLAMA_CLI_MEASURE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "upstream.h"

namespace kvevict::llama_cli {

struct Task {
  std::string policy;
  std::string scoring;  // the queries that score, as a sentence
  std::vector<llama_token> prompt;
  size_t n_trained = 0;  // the longest text that the model was trained with
  // Fed one by one after the prompt, whatever the model predicts.
  std::vector<llama_token> following;
  uint32_t n_generate = 0;
  // Evicts in the context itself, not into a smaller one.
  bool in_place = false;
  // The prompt's tokens that stay.
  uint32_t budget = 0;
  bool lacks_room = false;  // a ratio has no room for what must stay
  ContextOptions context;
};

struct Side {  // with the full cache, or the evicted one
  uint32_t cells = 0;
  uint64_t cache_bytes = 0;      // of these cells, in evicted layers
  uint64_t allocated_bytes = 0;  // of the whole cache; 0: no token was decoded
  uint64_t resident_bytes = 0;
  double tokens_per_s = 0;  // decoding one by one; 0: nothing was decoded
  double nll = 0;           // mean -log p of the following tokens, in nats
  std::vector<llama_token> continuation;
};

struct Outcome {
  double prefill_s = 0;
  Side full, evicted;
  double evict_ms = 0;    // the whole call
  double kvevict_ms = 0;  // of that: scoring, selecting, moving
  bool evicted_any = false;
  bool in_place = false;
  uint32_t n_evicted_layers = 0;  // the others are not evicted
  uint32_t n_cached_layers = 0;
  // Predictions after the eviction, over which the next two are averaged.
  uint32_t n_predictions = 0;
  double kl = 0;         // mean KL(full || evicted), in nats
  double agreement = 0;  // share of predictions with the same most likely token
};

Outcome Measure(llama_model* model, const Task& task,
                const std::function<void(size_t n_done)>& progress);

}  // namespace kvevict::llama_cli

#endif  // KVEVICT_INTEGRATIONS_LLAMA_CLI_MEASURE_H_
