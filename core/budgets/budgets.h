// How a budget is spread over the layers.
#ifndef KVEVICT_CORE_BUDGETS_BUDGETS_H_
#define KVEVICT_CORE_BUDGETS_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/policy/params.h"
#include "core/status.h"

namespace kvevict {

// The splits take time quadratic in the layers, so there is a most of them.
inline constexpr uint32_t kMaxLayers = 4096;

// What scoring finds of a layer's attention, for splits that go by it.
struct LayerMeasure {
  // kDynamics: entropy of the weights of all rows and heads in the slots before the
  // window. kEnds: the sum over the ends, averaged over rows and heads.
  float first = 0.0f;
  float variance = 0.0f;  // kDynamics: over rows, summed over slots and heads
};

// What a split starts from, in blocks of the policy's, which mostly are tokens.
// least <= budget < n_context.
struct SplitInput {
  const Policy& policy;
  uint32_t n_context;
  uint32_t budget;
  double exact_budget;  // before rounding
  uint32_t n_recent;
  uint32_t least;  // that every layer keeps: what must stay, and at least one
  std::span<const LayerMeasure>
      measures;  // of each layer, where splits have one
};

// Each writes, per layer, the blocks it keeps, in [least, n_context].
#define KVEVICT_LAYER_SPLIT(Name, text, is_exact, measure) \
  void Split##Name(const SplitInput& in, std::span<uint32_t> budgets);
#include "core/budgets/layer_splits.inc"
#undef KVEVICT_LAYER_SPLIT

// Tokens each layer keeps of a context; n_context where the budget covers it.
// The policy is valid. Fails where kvevict_policy_resolve() does, except that a
// covered context is no error.
Status LayerBudgets(const Policy& policy, uint32_t n_context,
                    std::span<uint32_t> budgets);

// The same by a split of layers that are measured. Every layer keeps n_protected more
// than what else must stay, which leaves budget enough.
Status LayerBudgets(const Policy& policy, uint32_t n_context,
                    std::span<const LayerMeasure> measures,
                    uint32_t n_protected, std::span<uint32_t> budgets);

// What every layer of such a split keeps at least. Fails if that is over the budget.
Status LeastBudget(const Policy& policy, uint32_t n_context,
                   uint32_t n_protected, uint32_t* out);

// No context of up to max_tokens tokens makes LayerBudgets() sum up to more
// than this, counting only layers that keep less than they hold.
size_t MaxTotalBudget(const Policy& policy, uint32_t max_tokens,
                      uint32_t n_layers);

}  // namespace kvevict

#endif  // KVEVICT_CORE_BUDGETS_BUDGETS_H_
