#include "measure.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "chat.h"
#include "platform.h"
#include "tools/llama/log_softmax.h"

namespace kvevict::llama_cli {
namespace {

using Clock = std::chrono::steady_clock;
using tools::ArgMax;
using tools::KlDivergence;
using tools::LogSoftmax;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Logits after the prompt and after each following token except the last.
using Predictions = std::vector<std::vector<float>>;

// Decodes the following tokens, then greedily from the end of the prompt again.
Predictions Decode(Chat& chat, const Task& task, Side& side) {
  const Chat::Snapshot prompt_end = chat.Take();
  Predictions predictions;
  const auto start = Clock::now();
  for (const llama_token token : task.following) {
    predictions.emplace_back(chat.logits().begin(), chat.logits().end());
    chat.Step(token);
  }
  if (!task.following.empty()) {
    side.tokens_per_s =
        static_cast<double>(task.following.size()) / SecondsSince(start);
  }
  if (task.n_generate > 0) {
    chat.Return(prompt_end);
    for (uint32_t i = 0; i < task.n_generate; ++i) {
      side.continuation.push_back(ArgMax(chat.logits()));
      chat.Step(side.continuation.back());
    }
  }
  side.allocated_bytes = chat.AllocatedBytes();
  return predictions;
}

// The first prediction is made before the eviction and does not count.
void Compare(const Predictions& full, const Predictions& evicted,
             const Task& task, Outcome& outcome) {
  if (full.size() < 2) return;
  const auto n = static_cast<uint32_t>(full.size() - 1);
  for (size_t i = 1; i < full.size(); ++i) {
    outcome.kl += KlDivergence(full[i], evicted[i]);
    outcome.agreement += ArgMax(full[i]) == ArgMax(evicted[i]) ? 1 : 0;
    outcome.full.nll -= LogSoftmax(full[i], task.following[i]);
    outcome.evicted.nll -= LogSoftmax(evicted[i], task.following[i]);
  }
  for (double* sum : {&outcome.kl, &outcome.agreement, &outcome.full.nll,
                      &outcome.evicted.nll}) {
    *sum /= n;
  }
  outcome.n_predictions = n;
}

uint32_t EvictedLayers(const kvevict_llama* kv) {
  uint32_t n = 0, layer = 0;
  while (kvevict_llama_layer(kv, n, &layer) == KVEVICT_OK) ++n;
  return n;
}

// The smallest context with room for the evicted sequence and what follows it.
uint32_t CellsOfTarget(const llama_model* model, const Task& task,
                       uint32_t behind) {
  const auto n_window = static_cast<uint32_t>(llama_model_n_swa(model));
  const uint32_t of_window =
      n_window == 0 ? 0 : n_window + task.context.n_ubatch;
  return std::max(task.budget + behind, of_window);
}

}  // namespace

Outcome Measure(llama_model* model, const Task& task,
                const std::function<void(size_t n_done)>& progress) {
  Outcome outcome;
  const auto behind = static_cast<uint32_t>(
      std::max<size_t>(task.following.size(), task.n_generate));
  ContextOptions options = task.context;
  options.n_batch = options.n_ubatch;
  options.n_ctx = std::max(options.n_ctx,
                           static_cast<uint32_t>(task.prompt.size()) + behind);
  auto chat = std::make_unique<Chat>(model, task.policy.c_str(), options);
  auto start = Clock::now();
  chat->Prefill(task.prompt, progress);
  outcome.prefill_s = SecondsSince(start);
  outcome.full.resident_bytes = ResidentBytes();
  outcome.n_cached_layers = chat->CachedLayers();

  kvevict_llama_evict_options evict = KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
  kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
  Predictions full, evicted;
  if (task.in_place) {
    const Chat::Snapshot whole = chat->Take();
    Check(kvevict_llama_evict(chat->kv(), 0, &evict, &report));
    outcome.n_evicted_layers = EvictedLayers(chat->kv());
    outcome.evicted.resident_bytes = outcome.full.resident_bytes;
    evicted = Decode(*chat, task, outcome.evicted);
    chat->Return(whole);
    full = Decode(*chat, task, outcome.full);
  } else {
    ContextOptions small = options;
    small.n_ctx = std::min(CellsOfTarget(model, task, behind), options.n_ctx);
    Chat target(model, task.policy.c_str(), small);
    evict.target = target.kv();
    Check(kvevict_llama_evict(chat->kv(), 0, &evict, &report));
    outcome.n_evicted_layers = EvictedLayers(chat->kv());
    target.StartFrom(*chat);
    full = Decode(*chat, task, outcome.full);
    chat.reset();
    outcome.evicted.resident_bytes = ResidentBytes();
    evicted = Decode(target, task, outcome.evicted);
  }
  outcome.evict_ms = report.total_ms;
  outcome.kvevict_ms = report.evict_ms;
  outcome.evicted_any = report.cells_after < report.cells_before;
  outcome.in_place = report.in_place != 0;
  outcome.full.cells = report.cells_before;
  outcome.full.cache_bytes = report.bytes_before;
  outcome.evicted.cells = report.cells_after;
  outcome.evicted.cache_bytes = report.bytes_after;
  Compare(full, evicted, task, outcome);
  return outcome;
}

}  // namespace kvevict::llama_cli
