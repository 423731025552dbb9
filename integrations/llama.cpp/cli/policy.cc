#include "policy.h"
#include "kvevict/experimental.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

namespace kvevict::llama_cli {

using tools::Policy;

namespace {

[[noreturn]] void Refuse(const std::string& text, const std::string& why) {
  throw std::runtime_error(fmt::format("policy \"{}\": {}", text, why));
}

bool IsOther(const Policy& policy, const char* key, const char* word) {
  const std::string value = policy.Get(key);
  return !value.empty() && value != word;
}

// The reason why a policy cannot work here; nullptr if it can.
const char* WhyNot(const Policy& policy, Engine engine) {
  const bool is_even = engine != Engine::kKvevict;
  if (is_even && IsOther(policy, "split", "uniform")) {
    return "its layers keep different numbers of tokens, but llama.cpp has one "
           "list of cells for all layers; split=uniform works";
  }
  if (is_even && IsOther(policy, "heads", "equal")) {
    return "its heads keep different numbers of tokens, but llama.cpp has one "
           "list of cells for all heads; heads=equal works";
  }
  if (IsOther(policy, "rotate", "no")) {
    return "it rotates keys to new positions, but the engine goes on counting "
           "the old ones; rotate=no works";
  }
  if (policy.Requires(KVEVICT_INPUT_SCORES)) {
    return "it ranks by the caller's own scores, and this program has none";
  }
  if (is_even && policy.Requires(KVEVICT_INPUT_REFERENCE_QUERIES)) {
    return "it needs reference queries, which this program has with "
           "--own-engine alone; reference=0 works";
  }
  if (policy.Requires(KVEVICT_INPUT_KEY_FILTER)) {
    return "it needs a file made for the model, and this program reads none";
  }
  if (policy.Requires(KVEVICT_INPUT_QUERY_CENTERS) &&
      engine != Engine::kCalibratedLlamaCpp) {
    return is_even
               ? "it needs statistics of the model's queries: --calibration "
                 "with a file of `kvevict-llama-cli calibrate`"
               : "it needs --calibration, which --own-engine does not take";
  }
  return nullptr;
}

template <typename Info>
void AddNames(kvevict_status (*at)(uint32_t, Info*),
              std::map<std::string, std::string>& names_by_reason) {
  Info info = {};
  info.struct_size = sizeof info;
  for (uint32_t i = 0; at(i, &info) == KVEVICT_OK; ++i) {
    const char* why = WhyNot(Policy(info.name), Engine::kLlamaCpp);
    if (why == nullptr) continue;
    std::string& names = names_by_reason[why];
    names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
}

}  // namespace

Policy ParsePolicy(const std::string& text, Engine engine) {
  Policy policy(text);
  if (const char* why = WhyNot(policy, engine)) Refuse(text, why);
  return policy;
}

kvevict_resolved_policy Resolve(const std::string& text, uint32_t n_prompt,
                                Engine engine) {
  const Policy policy = ParsePolicy(text, engine);
  try {
    return policy.Resolve(n_prompt);
  } catch (const tools::KvevictError& error) {
    Refuse(text, fmt::format("with a prompt of {} tokens (--tokens): {}",
                             n_prompt, error.what()));
  }
}

bool ReadsWeights(const Policy& policy) {
  return policy.Requires(KVEVICT_INPUT_TOKEN_WEIGHTS);
}

std::string DefaultPolicy(uint32_t n_prompt) {
  const std::string text = "snapkv:budget=0.25";
  const Policy policy(text);
  const auto sink = static_cast<uint32_t>(policy.Number("sink"));
  const auto window = static_cast<uint32_t>(policy.Number("window"));
  const uint32_t budget = n_prompt / 4;
  if (budget > sink + window) return text;
  return fmt::format("{},sink={},window={}", text, std::min(sink, budget / 4),
                     std::max(budget / 4, uint32_t{1}));
}

std::string PoliciesThatCannotWork() {
  std::map<std::string, std::string> names_by_reason;
  AddNames(kvevict_policy_at, names_by_reason);
  AddNames(kvevict_preset_at, names_by_reason);
  std::string lines = "Policies and presets that cannot work here:\n";
  for (const auto& [why, names] : names_by_reason) {
    lines += fmt::format("  {}: {}\n", names, why);
  }
  return lines;
}

std::string ScoringQueries(const Policy& policy, uint32_t n_prompt,
                           uint32_t query_rows) {
  const uint32_t n_rows = policy.Resolve(1).n_query_rows;
  if (n_rows == 0) return "";
  const bool is_any = n_rows == KVEVICT_QUERY_ROWS_ANY;
  const uint32_t n = is_any ? std::max(query_rows, 32u) : n_rows;
  if (n >= n_prompt) return "all queries of the prompt score";
  return (n == 1 ? "the last query of the prompt scores"
                 : fmt::format("the last {} queries of the prompt score", n)) +
         (is_any ? " (--query-rows)" : "");
}

}  // namespace kvevict::llama_cli
