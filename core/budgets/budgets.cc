#include "core/budgets/budgets.h"

#include <algorithm>

#include "core/policy.h"

namespace kvevict {
namespace {

using SplitFunction = void (*)(const SplitInput&, std::span<uint32_t>);

constexpr SplitFunction kSplits[] = {
#define KVEVICT_LAYER_SPLIT(Name, id, text, function) &function,
#include "core/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};

}  // namespace

Status LayerBudgets(const kvevict_policy& policy, uint32_t n_context,
                    std::span<uint32_t> budgets) {
  if (BudgetTokens(policy, n_context) >= n_context) {
    std::fill(budgets.begin(), budgets.end(), n_context);
    return Status();
  }
  kvevict_resolved_policy resolved;
  KV_RETURN_IF_ERROR(ResolvePolicy(policy, n_context, &resolved));
  const uint32_t n_recent = ForcedRecentTokens(policy);
  const SplitInput in{policy,
                      n_context,
                      resolved.budget,
                      ExactBudget(policy, n_context),
                      resolved.n_sink,
                      n_recent,
                      resolved.budget - resolved.n_sink - n_recent};
  kSplits[policy.layer_split](in, budgets);
  return Status();
}

size_t MaxTotalBudget(const kvevict_policy& policy, uint32_t max_tokens,
                      uint32_t n_layers) {
  const size_t budget = BudgetTokens(policy, max_tokens);
  // Uniform and geometric sums are exact. The integer steps of the arithmetic
  // splits lose less than one token per layer and step, and sinks may lift a
  // layer, so a layer keeps on average fewer than n_layers + n_sink more than
  // it should.
  const bool exact = policy.layer_split == KVEVICT_LAYER_SPLIT_UNIFORM ||
                     policy.layer_split == KVEVICT_LAYER_SPLIT_GEOMETRIC;
  const size_t per_layer =
      budget + (exact ? 0 : size_t{n_layers} + policy.n_sink);
  return n_layers * std::min<size_t>(per_layer, max_tokens);
}

void SplitUniform(const SplitInput& in, std::span<uint32_t> budgets) {
  std::fill(budgets.begin(), budgets.end(), in.budget);
}

}  // namespace kvevict
