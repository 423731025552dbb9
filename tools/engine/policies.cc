#include "tools/engine/policies.h"

#include <algorithm>
#include <cstdint>

#include "tools/engine/kvevict_error.h"

namespace kvevict::tools {
namespace {

bool Needs(const kvevict_policy& policy, kvevict_input input) {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(&policy, input, &need));
  return need == KVEVICT_NEED_REQUIRED;
}

// What a policy is of the longest context, as long as it may be: chunks of it would
// keep more than their budget.
kvevict_resolved_policy OfLongContext(kvevict_policy policy) {
  policy.chunk = 0;
  kvevict_resolved_policy resolved = {};
  resolved.struct_size = sizeof(resolved);
  Check(kvevict_policy_resolve(&policy, INT32_MAX, &resolved));
  return resolved;
}

// What the library checks only when an eviction knows the tokens.
void CheckFits(const kvevict_policy& policy, uint32_t n_tokens,
               uint32_t n_layers) {
  if (Needs(policy, KVEVICT_INPUT_SCORES)) {
    throw KvevictError(KVEVICT_ERROR_INVALID_ARGUMENT,
                       "it ranks by scores of the caller's own, and this "
                       "program has none");
  }
  if (Needs(policy, KVEVICT_INPUT_TOKEN_WEIGHTS)) {
    throw KvevictError(KVEVICT_ERROR_INVALID_ARGUMENT,
                       "it weighs by numbers of the caller's own, and this "
                       "program has none");
  }
  std::vector<uint32_t> budgets(n_layers);
  const kvevict_status status = kvevict_policy_layer_budgets(
      &policy, n_tokens, budgets.data(), budgets.size());
  // Where scores decide what layers keep, all else has been checked.
  if (status != KVEVICT_ERROR_UNSUPPORTED) Check(status);
}

}  // namespace

kvevict_policy ParsePolicy(const std::string& text, double default_budget) {
  kvevict_policy policy = KVEVICT_POLICY_INIT;
  Check(kvevict_policy_parse(text.c_str(), &policy));
  // A StreamingLLM window of its own is a budget too.
  const bool has_window =
      policy.kind == KVEVICT_POLICY_STREAMING_LLM && policy.n_recent > 0;
  const bool names_budget = text.find("budget") != std::string::npos;
  if (!names_budget && !has_window) policy.budget = default_budget;
  Check(kvevict_policy_validate(&policy));
  return policy;
}

uint32_t WindowOf(const kvevict_policy& policy) {
  if (!Needs(policy, KVEVICT_INPUT_QUERIES)) return 0;
  return OfLongContext(policy).obs_window;
}

bool WantsAllQueries(const kvevict_policy& policy) {
  return Needs(policy, KVEVICT_INPUT_QUERIES) && WindowOf(policy) == 0;
}

bool ScoresAreMass(const kvevict_policy& policy) {
  // kvevict_score() scores no more than a chunk at a time.
  return policy.chunk == 0 && OfLongContext(policy).scores_are_mass != 0;
}

bool WantsSums(const kvevict_policy& policy) {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(&policy, KVEVICT_INPUT_ATTENTION_SUMS, &need));
  return need != KVEVICT_NEED_NONE;
}

std::string WhyNotWhileDecoding(const kvevict_policy& policy) {
  if (policy.rotate != 0) return "it turns keys, positions here are true ones";
  if (WantsAllQueries(policy)) return "it needs the queries of all tokens";
  if (WantsSums(policy) && policy.head_split != KVEVICT_HEAD_SPLIT_EQUAL) {
    return "it needs sums of attention, of heads that hold as many tokens each";
  }
  return "";
}

void CheckDecoding(std::span<const NamedPolicy> policies,
                   std::span<const kvevict_policy> parsed) {
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
    if (!Needs(ParsePolicy(info.name, 1), KVEVICT_INPUT_SCORES)) {
      all.push_back({info.name, info.name});
    }
  }
  return all;
}

std::vector<kvevict_policy> ParsePolicies(std::span<const NamedPolicy> policies,
                                          double default_budget,
                                          uint32_t n_tokens,
                                          uint32_t n_layers) {
  std::vector<kvevict_policy> parsed;
  for (const NamedPolicy& policy : policies) {
    try {
      parsed.push_back(ParsePolicy(policy.text, default_budget));
      CheckFits(parsed.back(), n_tokens, n_layers);
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
