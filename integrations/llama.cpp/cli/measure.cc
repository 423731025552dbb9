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

// Logits of the prompt's end and behind each token that follows but the last.
using Predictions = std::vector<std::vector<float>>;

// Teacher-forced, then greedily from the prompt's end again.
Predictions Decode(Chat& chat, const Task& task, Side& side) {
  const Chat::Snapshot prompt_end = chat.Take();
  Predictions predictions;
  const auto start = Clock::now();
  for (size_t i = 0; i < task.following.size(); ++i) {
    predictions.emplace_back(chat.logits().begin(), chat.logits().end());
    side.nll -= LogSoftmax(predictions.back(), task.following[i]);
    chat.Step(task.following[i]);
  }
  if (!task.following.empty()) {
    const auto n = static_cast<double>(task.following.size());
    side.tokens_per_s = n / SecondsSince(start);
    side.nll /= n;
  }
  if (task.n_generate > 0) {
    chat.Return(prompt_end);
    for (uint32_t i = 0; i < task.n_generate; ++i) {
      side.continuation.push_back(ArgMax(chat.logits()));
      chat.Step(side.continuation.back());
    }
  }
  return predictions;
}

void Compare(const Predictions& full, const Predictions& evicted,
             Outcome& outcome) {
  // The first is made before the eviction.
  for (size_t i = 1; i < full.size(); ++i) {
    outcome.kl += KlDivergence(full[i], evicted[i]);
    outcome.agreement += ArgMax(full[i]) == ArgMax(evicted[i]) ? 1 : 0;
    ++outcome.n_predictions;
  }
  if (outcome.n_predictions > 0) {
    outcome.kl /= outcome.n_predictions;
    outcome.agreement /= outcome.n_predictions;
  }
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

  kvevict_llama_evict_options evict = KVEVICT_LLAMA_EVICT_OPTIONS_INIT;
  kvevict_llama_report report = KVEVICT_LLAMA_REPORT_INIT;
  Predictions full, evicted;
  if (task.in_place) {
    const Chat::Snapshot whole = chat->Take();
    Check(kvevict_llama_evict(chat->kv(), 0, &evict, &report));
    outcome.evicted.resident_bytes = outcome.full.resident_bytes;
    evicted = Decode(*chat, task, outcome.evicted);
    chat->Return(whole);
    full = Decode(*chat, task, outcome.full);
  } else {
    // The smallest context that holds what stays is known by trying.
    kvevict_policy policy = KVEVICT_POLICY_INIT;
    kvevict_resolved_policy tokens = {};
    tokens.struct_size = sizeof tokens;
    const auto n_prompt = static_cast<uint32_t>(task.prompt.size());
    uint32_t budget = n_prompt;
    if (kvevict_policy_parse(task.policy.c_str(), &policy) == KVEVICT_OK &&
        kvevict_policy_resolve(&policy, n_prompt, &tokens) == KVEVICT_OK) {
      budget = tokens.budget;
    }
    ContextOptions small = options;
    small.n_ctx = std::min(budget + behind, options.n_ctx);
    Chat target(model, task.policy.c_str(), small);
    evict.target = target.kv();
    Check(kvevict_llama_evict(chat->kv(), 0, &evict, &report));
    target.StartFrom(*chat);
    full = Decode(*chat, task, outcome.full);
    chat.reset();
    outcome.evicted.resident_bytes = ResidentBytes();
    evicted = Decode(target, task, outcome.evicted);
  }
  outcome.evict_ms = report.total_ms;
  outcome.kvevict_ms = report.evict_ms;
  outcome.in_place = report.in_place != 0;
  outcome.full.cells = report.cells_before;
  outcome.full.cache_bytes = report.bytes_before;
  outcome.evicted.cells = report.cells_after;
  outcome.evicted.cache_bytes = report.bytes_after;
  Compare(full, evicted, outcome);
  return outcome;
}

}  // namespace kvevict::llama_cli
