#include "policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

namespace kvevict::llama_cli {
namespace {

[[noreturn]] void Refuse(const std::string& text, const std::string& why) {
  throw std::runtime_error(fmt::format("policy \"{}\": {}", text, why));
}

bool Requires(const kvevict_policy& policy, kvevict_input input) {
  kvevict_need need = KVEVICT_NEED_NONE;
  return kvevict_policy_need(&policy, input, &need) == KVEVICT_OK &&
         need == KVEVICT_NEED_REQUIRED;
}

// Why a policy cannot work here; nullptr if it can.
const char* WhyNot(const kvevict_policy& policy) {
  if (policy.layer_split != KVEVICT_LAYER_SPLIT_UNIFORM) {
    return "its layers keep different numbers of tokens, and llama.cpp has one "
           "list of cells for all layers; split=uniform works";
  }
  if (policy.head_split != KVEVICT_HEAD_SPLIT_EQUAL) {
    return "its heads keep different numbers of tokens, and llama.cpp has one "
           "list of cells for all heads; heads=equal works";
  }
  if (policy.rotate != 0) {
    return "it turns keys to new positions, and llama.cpp goes on counting the "
           "old ones; rotate=no works";
  }
  if (Requires(policy, KVEVICT_INPUT_SCORES)) {
    return "it ranks by scores of the caller's own, and this program has none";
  }
  if (Requires(policy, KVEVICT_INPUT_KEY_FILTER) ||
      Requires(policy, KVEVICT_INPUT_QUERY_CENTERS)) {
    return "it needs a file made for the model, and this program reads none";
  }
  return nullptr;
}

template <typename Info>
void AddNames(kvevict_status (*at)(uint32_t, Info*),
              std::map<std::string, std::string>& names_by_reason) {
  Info info = {};
  info.struct_size = sizeof info;
  for (uint32_t i = 0; at(i, &info) == KVEVICT_OK; ++i) {
    kvevict_policy policy = KVEVICT_POLICY_INIT;
    if (kvevict_policy_parse(info.name, &policy) != KVEVICT_OK) continue;
    const char* why = WhyNot(policy);
    if (why == nullptr) continue;
    std::string& names = names_by_reason[why];
    names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
}

}  // namespace

kvevict_policy ParsePolicy(const std::string& text) {
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  if (kvevict_policy_parse(text.c_str(), &policy) != KVEVICT_OK) {
    throw std::runtime_error(kvevict_last_error_message());
  }
  if (const char* why = WhyNot(policy)) Refuse(text, why);
  return policy;
}

kvevict_resolved_policy Resolve(const std::string& text, uint32_t n_prompt) {
  const kvevict_policy policy = ParsePolicy(text);
  kvevict_resolved_policy tokens = {};
  tokens.struct_size = sizeof tokens;
  if (kvevict_policy_resolve(&policy, n_prompt, &tokens) != KVEVICT_OK) {
    Refuse(text, fmt::format("with a prompt of {} tokens (--tokens): {}",
                             n_prompt, kvevict_last_error_message()));
  }
  return tokens;
}

bool ReadsWeights(const kvevict_policy& policy) {
  return Requires(policy, KVEVICT_INPUT_TOKEN_WEIGHTS);
}

std::string DefaultPolicy(uint32_t n_prompt) {
  const std::string text = "snapkv:budget=0.25";
  const kvevict_policy policy = ParsePolicy(text);
  const uint32_t budget = n_prompt / 4;
  if (budget > policy.n_sink + policy.obs_window) return text;
  return fmt::format("{},sink={},window={}", text,
                     std::min(policy.n_sink, budget / 4),
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

std::string ScoringQueries(const kvevict_policy& policy, uint32_t n_prompt,
                           uint32_t query_rows) {
  kvevict_need need = KVEVICT_NEED_NONE;
  if (kvevict_policy_need(&policy, KVEVICT_INPUT_QUERIES, &need) !=
          KVEVICT_OK ||
      need == KVEVICT_NEED_NONE) {
    return "";
  }
  const bool is_h2o = policy.kind == KVEVICT_POLICY_H2O;
  const uint32_t n = std::max(is_h2o ? query_rows : 0, policy.obs_window);
  if (policy.kind == KVEVICT_POLICY_NON_CAUSAL || n >= n_prompt) {
    return "all queries of the prompt score";
  }
  return (n == 1 ? "the last query of the prompt scores"
                 : fmt::format("the last {} queries of the prompt score", n)) +
         (is_h2o ? " (--query-rows)" : "");
}

}  // namespace kvevict::llama_cli
