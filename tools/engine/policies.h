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

// Reads the text form of a policy. Where the text leaves the budget open (and is
// not a StreamingLLM window), default_budget applies.
Policy ParsePolicy(const std::string& text, double default_budget);

// What it scores by is attention, paid or expected: scores add up to a mass.
bool ScoresAreMass(const Policy& policy);

// Last queries that it scores by; 0 if none do.
uint32_t WindowOf(const Policy& policy);

// Whether it can evict after each decoded token with nothing more than queries, the
// attention that they pay and what a model's queries are like as a whole, of keys that
// stay as they are; if not, why.
std::string WhyNotWhileDecoding(const Policy& policy);

// It scores by sums of attention.
bool WantsSums(const Policy& policy);

// Why some of them cannot, by name; throws a KvevictError.
void CheckDecoding(std::span<const NamedPolicy> policies,
                   std::span<const Policy> parsed);

// It scores by the queries of all slots held, not by those of a window.
bool WantsAllQueries(const Policy& policy);

// The policies of evictors for caches of n_layers, which evict n_tokens. Throws a
// KvevictError that names the policy where one could not do that: policy custom
// among them, whose scores an engine would have to give.
std::vector<Policy> ParsePolicies(std::span<const NamedPolicy> policies,
                                  double default_budget, uint32_t n_tokens,
                                  uint32_t n_layers);

// Tokens that a budget is of n_tokens, as the library counts them. Throws
// a KvevictError unless it is above 0.
uint32_t BudgetTokens(double budget, uint32_t n_tokens);

}  // namespace kvevict::tools

#endif  // KVEVICT_TOOLS_ENGINE_POLICIES_H_
