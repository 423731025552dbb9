// SimLayerKV: layers that attend to the ends of the context keep the budget.
#include "core/budgets/budgets.h"

namespace kvevict {

void SplitLazy(const SplitInput& in, std::span<uint32_t> budgets) {
  const double threshold = in.policy.lazy;
  for (size_t l = 0; l < budgets.size(); ++l) {
    // Rounding can bring the sum of all weights above 1.
    const bool is_lazy = threshold < 1.0 && in.measures[l].first > threshold;
    budgets[l] = is_lazy ? in.budget : in.n_context;
  }
}

}  // namespace kvevict
