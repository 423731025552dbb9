#include "tools/engine/policies.h"

#include <algorithm>
#include <cstdint>

#include "kvevict/experimental.h"
#include "tools/engine/kvevict_error.h"

namespace kvevict::tools {
namespace {

// The part of a resolved policy that does not depend on the context.
kvevict_resolved_policy OfAnyContext(const Policy& policy) {
  return policy.Resolve(1);
}

// Checks what the library checks only when an eviction knows the tokens.
void CheckFits(const Policy& policy, uint32_t n_tokens, uint32_t n_layers,
               bool has_weights, uint32_t n_reference) {
  if (policy.Requires(KVEVICT_INPUT_SCORES)) {
    throw KvevictError(
        KVEVICT_ERROR_INVALID_ARGUMENT,
        "it ranks by the caller's own scores, and this program has none");
  }
  if (!has_weights && WeighsTokens(policy)) {
    throw KvevictError(KVEVICT_ERROR_INVALID_ARGUMENT,
                       "it weighs by numbers of the caller's own, and this "
                       "program has none");
  }
  if (policy.Number("reference") > n_reference) {
    throw KvevictError(KVEVICT_ERROR_INVALID_ARGUMENT,
                       "reference " + policy.Get("reference") + " > " +
                           std::to_string(n_reference) +
                           " reference queries that there are");
  }
  std::vector<uint32_t> budgets(n_layers);
  const kvevict_status status = kvevict_policy_layer_budgets(
      policy.get(), n_tokens, budgets.data(), budgets.size());
  // If scores decide what layers keep, all else has been checked.
  if (status != KVEVICT_ERROR_UNSUPPORTED) Check(status);
}

}  // namespace

Policy ParsePolicy(const std::string& text, double default_budget) {
  Policy policy(text);
  // A StreamingLLM window of its own is a budget too.
  const bool has_window =
      policy.Name() == "streaming-llm" && policy.Number("recent") > 0;
  const bool names_budget = text.find("budget") != std::string::npos;
  // The policy none has no budget.
  if (!names_budget && !has_window && policy.Number("budget") > 0) {
    policy.Set("budget", default_budget);
  }
  Check(kvevict_policy_validate(policy.get()));
  return policy;
}

uint32_t WindowOf(const Policy& policy) {
  const uint32_t n_rows = OfAnyContext(policy).n_query_rows;
  return n_rows < KVEVICT_QUERY_ROWS_ALL ? n_rows : 0;
}

bool WantsAllQueries(const Policy& policy) {
  return OfAnyContext(policy).n_query_rows == KVEVICT_QUERY_ROWS_ALL;
}

bool ScoresAreMass(const Policy& policy) {
  // kvevict_score() scores no more than a chunk at a time.
  return policy.Number("chunk") == 0 &&
         OfAnyContext(policy).scores_are_mass != 0;
}

bool WeighsTokens(const Policy& policy) {
  return policy.Requires(KVEVICT_INPUT_TOKEN_WEIGHTS);
}

bool WantsSums(const Policy& policy) {
  return policy.Need(KVEVICT_INPUT_ATTENTION_SUMS) != KVEVICT_NEED_NONE;
}

std::string WhyNotWhileDecoding(const Policy& policy) {
  if (policy.Number("rotate") != 0) {
    return "it rotates keys to their slots, but this engine keeps their "
           "positions";
  }
  if (WantsAllQueries(policy)) return "it needs the queries of all tokens";
  if (WeighsTokens(policy)) return "it needs weights of the tokens that stay";
  if (WantsSums(policy) && policy.Get("heads") != "equal") {
    return "it needs attention sums, and heads that hold equally many tokens";
  }
  return "";
}

void CheckDecoding(std::span<const NamedPolicy> policies,
                   std::span<const Policy> parsed) {
  for (size_t i = 0; i < parsed.size(); ++i) {
    const std::string reason = WhyNotWhileDecoding(parsed[i]);
    if (reason.empty()) continue;
    throw KvevictError(KVEVICT_ERROR_INVALID_ARGUMENT,
                       "policy " + policies[i].label +
                           " cannot go on with --decode: " + reason);
  }
}

std::vector<NamedPolicy> AllPolicies() {
  std::vector<NamedPolicy> all;
  kvevict_policy_info info = {};
  info.struct_size = sizeof(info);
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    if (!Policy(info.name).Requires(KVEVICT_INPUT_SCORES)) {
      all.push_back({info.name, info.name});
    }
  }
  return all;
}

std::vector<Policy> ParsePolicies(std::span<const NamedPolicy> policies,
                                  double default_budget, uint32_t n_tokens,
                                  uint32_t n_layers, bool has_weights,
                                  uint32_t n_reference) {
  std::vector<Policy> parsed;
  for (const NamedPolicy& policy : policies) {
    try {
      parsed.push_back(ParsePolicy(policy.text, default_budget));
      CheckFits(parsed.back(), n_tokens, n_layers, has_weights, n_reference);
    } catch (const KvevictError& error) {
      throw KvevictError(error.status,
                         "policy " + policy.label + ": " + error.what());
    }
  }
  return parsed;
}

uint32_t BudgetTokens(double budget, uint32_t n_tokens) {
  if (!(budget > 0)) {
    throw KvevictError(
        KVEVICT_ERROR_INVALID_ARGUMENT,
        "budget " + std::to_string(budget) + " is not a number > 0");
  }
  const double n = budget <= 1 ? budget * n_tokens : budget;
  return static_cast<uint32_t>(std::clamp<double>(n, 1, n_tokens));
}

}  // namespace kvevict::tools
