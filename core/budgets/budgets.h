// How a budget is spread over the layers.
#ifndef KVEVICT_CORE_BUDGETS_BUDGETS_H_
#define KVEVICT_CORE_BUDGETS_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/status.h"

namespace kvevict {

// The splits take time quadratic in the layers, so there is a most of them.
inline constexpr uint32_t kMaxLayers = 4096;

// What a split starts from, in blocks of the policy's, which mostly are tokens.
// n_sink + n_recent + n_selected = budget < n_context.
struct SplitInput {
  const kvevict_policy& policy;
  uint32_t n_context;
  uint32_t budget;
  double exact_budget;  // before rounding
  uint32_t n_sink;
  uint32_t n_recent;
  uint32_t n_selected;
};

// Each writes, per layer, the blocks it keeps, in [n_sink + n_recent,
// n_context].
#define KVEVICT_LAYER_SPLIT(NAME, text, function, is_exact) \
  void function(const SplitInput& in, std::span<uint32_t> budgets);
#include "core/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT

// Tokens each layer keeps of a context; n_context where the budget covers it.
// The policy is valid. Fails where kvevict_policy_resolve() does, except that a
// covered context is no error.
Status LayerBudgets(const kvevict_policy& policy, uint32_t n_context,
                    std::span<uint32_t> budgets);

// No context of up to max_tokens tokens makes LayerBudgets() sum up to more
// than this, counting only layers that keep less than they hold.
size_t MaxTotalBudget(const kvevict_policy& policy, uint32_t max_tokens,
                      uint32_t n_layers);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BUDGETS_BUDGETS_H_
