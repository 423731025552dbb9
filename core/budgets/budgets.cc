#include "core/budgets/budgets.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/policy/policy.h"
#include "core/policy/policy_text.h"
#include "core/view/chunks.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

struct Split {
  void (*spread)(const SplitInput&, std::span<uint32_t>);
  bool is_exact;
};

constexpr Split kSplits[] = {
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) \
  {Split##Name, is_exact},
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT
};

// The input of splits for a context longer than the budget.
Status InputOf(const Policy& policy, uint32_t n_context, uint32_t n_protected,
               std::optional<SplitInput>* out) {
  kvevict_resolved_policy resolved;
  KV_RETURN_IF_ERROR(ResolvePolicy(policy, n_context, &resolved));
  // Splits count blocks, since whole blocks of layers add up.
  const SlotBlocks blocks = BlocksOf(policy);
  const uint32_t n_budget = blocks.Count(resolved.budget);
  const uint32_t n_sink = blocks.Count(resolved.n_sink);
  const uint32_t n_recent =
      blocks.Count(blocks.Recent(ForcedRecentTokens(policy), n_context));
  const uint64_t least = HasChunks(policy)
                             ? Chunks(policy, n_context).Least()
                             : uint64_t{n_sink} + n_recent + n_protected;
  if (least > n_budget) {
    return InvalidArgument(
        "budget %u < sink %u + recent %u + %u protected positions, which every "
        "layer must hold%s",
        resolved.budget, policy.sink.count, ForcedRecentTokens(policy),
        n_protected, BlockWords(blocks).text);
  }
  out->emplace(SplitInput{policy,
                          blocks.Count(n_context),
                          n_budget,
                          ExactBudget(policy, n_context),
                          n_recent,
                          std::max(1u, static_cast<uint32_t>(least)),
                          {}});
  return Status();
}

bool IsCovered(const Policy& policy, uint32_t n_context,
               std::span<uint32_t> budgets) {
  if (BudgetTokens(policy, n_context) < n_context) return false;
  std::fill(budgets.begin(), budgets.end(), n_context);
  return true;
}

// Spreads the budget for a context longer than it.
Status Spread(const Policy& of_shares, uint32_t n_context,
              std::span<const LayerMeasure> measures, uint32_t n_protected,
              std::span<uint32_t> budgets) {
  const Policy policy = InTokens(of_shares, n_context);
  std::optional<SplitInput> in;
  KV_RETURN_IF_ERROR(InputOf(policy, n_context, n_protected, &in));
  in->measures = measures;
  kSplits[static_cast<int>(policy.split)].spread(*in, budgets);
  for (uint32_t& budget : budgets) {
    budget = BlocksOf(policy).TokensOf(budget, n_context);
  }
  return Status();
}

}  // namespace

Status LayerBudgets(const Policy& policy, uint32_t n_context,
                    std::span<uint32_t> budgets) {
  if (IsCovered(policy, n_context, budgets)) return Status();
  if (SplitsByScore(policy)) {
    uint32_t least = 0;
    KV_RETURN_IF_ERROR(LeastBudget(policy, n_context, 0, &least));
    return Unsupported(
        "split %s: scores decide how many tokens layers keep, and only "
        "kvevict_sequence_evict() has them",
        WordOf(policy.split));
  }
  return Spread(policy, n_context, {}, 0, budgets);
}

Status LayerBudgets(const Policy& policy, uint32_t n_context,
                    std::span<const LayerMeasure> measures,
                    uint32_t n_protected, std::span<uint32_t> budgets) {
  if (IsCovered(policy, n_context, budgets)) return Status();
  return Spread(policy, n_context, measures, n_protected, budgets);
}

Status LeastBudget(const Policy& of_shares, uint32_t n_context,
                   uint32_t n_protected, uint32_t* out) {
  const Policy policy = InTokens(of_shares, n_context);
  if (IsCovered(policy, n_context, {out, 1})) return Status();
  std::optional<SplitInput> in;
  KV_RETURN_IF_ERROR(InputOf(policy, n_context, n_protected, &in));
  // A lazy layer keeps the budget whatever the other layers do.
  const bool is_lazy = policy.split == LayerSplit::kLazy;
  *out = BlocksOf(policy).TokensOf(is_lazy ? in->budget : in->least, n_context);
  return Status();
}

size_t MaxTotalBudget(const Policy& policy, uint32_t max_tokens,
                      uint32_t n_layers) {
  const SlotBlocks blocks = BlocksOf(policy);
  // The last block of a shorter context may be fuller.
  const size_t budget = BudgetTokens(policy, max_tokens) + (blocks.size - 1);
  // The integer steps of the arithmetic splits lose less than one block per
  // layer and step, and sinks may lift a layer. So a layer keeps on average
  // fewer than n_layers + n_sink blocks more than it should. With chunks all
  // that they keep at least may lift it.
  const bool is_exact = kSplits[static_cast<int>(policy.split)].is_exact;
  const uint64_t lift = HasChunks(policy) ? Chunks(policy, max_tokens).Least()
                                          : blocks.RoundUp(policy.sink.count);
  // A context that is one token longer may complete a partition, which then
  // loses some.
  const size_t per_layer = budget +
                           (is_exact ? 0 : lift + n_layers * blocks.size) +
                           (IsBudgetOfPartition(policy) ? policy.block : 0);
  return n_layers * std::min<size_t>(per_layer, max_tokens);
}

// Evictions count winners instead: see core/evict/contest.cc.
void SplitScores(const SplitInput& in, std::span<uint32_t> budgets) {
  SplitUniform(in, budgets);
}

void SplitUniform(const SplitInput& in, std::span<uint32_t> budgets) {
  std::fill(budgets.begin(), budgets.end(), in.budget);
}

}  // namespace kvevict
