// How a budget is spread over the layers.
#ifndef KVEVICT_CORE_BUDGETS_BUDGETS_H_
#define KVEVICT_CORE_BUDGETS_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/policy/params.h"
#include "core/status.h"

namespace kvevict {

// Splits take time quadratic in the layers, so their number is limited.
inline constexpr uint32_t kMaxLayers = 4096;

// What scoring measures of a layer's attention, for splits that need it.
struct LayerMeasure {
  // kDynamics: the entropy of the weights of all rows and heads over the slots
  // before the window. kEnds: the sum over both ends, averaged over rows and
  // heads.
  float first = 0.0f;
  // kDynamics: variance over rows, summed over slots and heads
  float variance = 0.0f;
};

// The input of a split, in blocks of the policy, which usually are single
// tokens. least <= budget < n_context.
struct SplitInput {
  const Policy& policy;
  uint32_t n_context;
  uint32_t budget;
  double exact_budget;  // before rounding
  uint32_t n_recent;
  uint32_t least;  // for every layer: what must stay, and at least one
  std::span<const LayerMeasure>
      measures;  // of each layer, if the split needs them
};

// Each writes the blocks that every layer keeps, in [least, n_context].
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) \
  void Split##Name(const SplitInput& in, std::span<uint32_t> budgets);
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT

// The tokens that each layer keeps of a context: n_context if the budget covers
// it. The policy is valid. Fails if kvevict_policy_resolve() does, except that
// a covered context is no error.
Status LayerBudgets(const Policy& policy, uint32_t n_context,
                    std::span<uint32_t> budgets);

// The same for a split by measures of layers. Every layer keeps n_protected
// tokens in addition to what else must stay. The budget must have room for
// them.
Status LayerBudgets(const Policy& policy, uint32_t n_context,
                    std::span<const LayerMeasure> measures,
                    uint32_t n_protected, std::span<uint32_t> budgets);

// The fewest tokens that a layer of such a split keeps. Fails if they exceed
// the budget.
Status LeastBudget(const Policy& policy, uint32_t n_context,
                   uint32_t n_protected, uint32_t* out);

// An upper bound of the sum of LayerBudgets() for contexts of up to max_tokens,
// counting only layers that keep less than they hold.
size_t MaxTotalBudget(const Policy& policy, uint32_t max_tokens,
                      uint32_t n_layers);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BUDGETS_BUDGETS_H_
