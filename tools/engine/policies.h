// Policies as a user types them, checked before any work is done for them.
#ifndef KVEVICT_TOOLS_ENGINE_POLICIES_H_
#define KVEVICT_TOOLS_ENGINE_POLICIES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvevict/kvevict.h"
#include "tools/engine/policy.h"

namespace kvevict::tools {

struct NamedPolicy {
  std::string label;
  std::string text;
};

// Every policy of the library that ranks by itself, with its defaults.
std::vector<NamedPolicy> AllPolicies();

// Reads the text form of a policy. default_budget applies if the text has no
// budget and no StreamingLLM window.
Policy ParsePolicy(const std::string& text, double default_budget);

// True if it scores by attention, observed or expected, so that scores add up
// to a mass.
bool ScoresAreMass(const Policy& policy);

// The number of last queries that it scores by; 0 if none do.
uint32_t WindowOf(const Policy& policy);

// The reason why it cannot evict after each decoded token, given only queries,
// their attention and statistics of the model's queries, without changing keys
// that stay; "" if it can.
std::string WhyNotWhileDecoding(const Policy& policy);

// True if it weighs tokens by numbers of the engine's, norms of V Wo.
bool WeighsTokens(const Policy& policy);

// True if it scores by attention sums.
bool WantsSums(const Policy& policy);

// Throws a KvevictError that names policies which cannot, and why.
void CheckDecoding(std::span<const NamedPolicy> policies,
                   std::span<const Policy> parsed);

// True if it scores by the queries of all slots held, not only of a window.
bool WantsAllQueries(const Policy& policy);

// Reads policies that evict n_tokens from caches of n_layers. Throws a
// KvevictError that names a policy which cannot do that. Policy custom is one
// of these, since an engine would have to give its scores, and without
// has_weights policies with weight=given are. So are those that take more than
// n_reference reference queries.
std::vector<Policy> ParsePolicies(std::span<const NamedPolicy> policies,
                                  double default_budget, uint32_t n_tokens,
                                  uint32_t n_layers, bool has_weights = false,
                                  uint32_t n_reference = 0);

// The tokens that a budget is of n_tokens, as the library counts them. Throws a
// KvevictError unless it is above 0.
uint32_t BudgetTokens(double budget, uint32_t n_tokens);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_POLICIES_H_
