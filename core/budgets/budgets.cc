#include "core/budgets/budgets.h"

#include <algorithm>
#include <iterator>

#include "core/policy.h"

namespace kvevict {
namespace {

struct LayerSplit {
  kvevict_layer_split value;
  void (*spread)(const SplitInput&, std::span<uint32_t>);
  bool is_exact;
};

constexpr LayerSplit kSplits[] = {
#define KVEVICT_LAYER_SPLIT(NAME, text, function, is_exact) \
  {KVEVICT_LAYER_SPLIT_##NAME, function, is_exact},
#include "core/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};

constexpr bool StandInOrder() {
  for (size_t i = 0; i < std::size(kSplits); ++i) {
    if (static_cast<size_t>(kSplits[i].value) != i) return false;
  }
  return true;
}
static_assert(StandInOrder());

}  // namespace

Status LayerBudgets(const kvevict_policy& policy, uint32_t n_context,
                    std::span<uint32_t> budgets) {
  if (BudgetTokens(policy, n_context) >= n_context) {
    std::fill(budgets.begin(), budgets.end(), n_context);
    return Status();
  }
  kvevict_resolved_policy resolved;
  KV_RETURN_IF_ERROR(ResolvePolicy(policy, n_context, &resolved));
  // Splits count blocks: what layers have of them adds up.
  const SlotBlocks blocks = BlocksOf(policy);
  const uint32_t n_budget = blocks.Count(resolved.budget);
  const uint32_t n_sink = blocks.Count(resolved.n_sink);
  const uint32_t n_recent =
      blocks.Count(blocks.Recent(ForcedRecentTokens(policy), n_context));
  const SplitInput in{policy,
                      blocks.Count(n_context),
                      n_budget,
                      ExactBudget(policy, n_context),
                      n_sink,
                      n_recent,
                      n_budget - n_sink - n_recent};
  kSplits[policy.layer_split].spread(in, budgets);
  for (uint32_t& budget : budgets) budget = blocks.TokensOf(budget, n_context);
  return Status();
}

size_t MaxTotalBudget(const kvevict_policy& policy, uint32_t max_tokens,
                      uint32_t n_layers) {
  const SlotBlocks blocks = BlocksOf(policy);
  // The last block of a shorter context may be fuller.
  const size_t budget = BudgetTokens(policy, max_tokens) + (blocks.size - 1);
  // The integer steps of the arithmetic splits lose less than one block per layer
  // and step, and sinks may lift a layer, so a layer keeps on average fewer than
  // n_layers + n_sink blocks more than it should.
  const bool is_exact = kSplits[policy.layer_split].is_exact;
  // A context that is a token longer may end a partition, which then loses some.
  const size_t per_layer =
      budget +
      (is_exact ? 0 : blocks.RoundUp(policy.n_sink) + n_layers * blocks.size) +
      (IsBudgetOfPartition(policy) ? policy.block : 0);
  return n_layers * std::min<size_t>(per_layer, max_tokens);
}

void SplitUniform(const SplitInput& in, std::span<uint32_t> budgets) {
  std::fill(budgets.begin(), budgets.end(), in.budget);
}

}  // namespace kvevict
