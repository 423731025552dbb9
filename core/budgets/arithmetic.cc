// PyramidKV with budgets that fall by a constant step, in the three published
// forms. c = budget - window past tokens; layer 0 gets 2c - c/beta, the last
// one c/beta.
#include <algorithm>
#include <cmath>

#include "core/budgets/budgets.h"

namespace kvevict {

// The AdaKV repository: in integers, for every context over the budget. A layer
// whose share exceeds the context keeps all. Since the step is rounded down the
// sum exceeds the budget.
void SplitArithmeticAdakv(const SplitInput& in, std::span<uint32_t> budgets) {
  const int64_t n = static_cast<int64_t>(budgets.size());
  if (n == 1) return SplitUniform(in, budgets);
  const int64_t window = in.n_recent;
  const int64_t c = int64_t{in.budget} - window;
  const int64_t past = int64_t{in.n_context} - window;
  int64_t lowest = c / in.policy.beta;
  int64_t highest = 2 * c - lowest;
  if (highest >= past) {
    highest = past;
    lowest = 2 * c - highest;
  }
  const int64_t step = (highest - lowest) / (n - 1);
  for (int64_t l = 0; l < n; ++l) {
    budgets[l] = static_cast<uint32_t>(std::clamp<int64_t>(
        highest - l * step + window, in.least, in.n_context));
  }
}

// KVCache-Factory: the same, but uniform for contexts shorter than 2c.
void SplitArithmeticKvf(const SplitInput& in, std::span<uint32_t> budgets) {
  const int64_t c = int64_t{in.budget} - in.n_recent;
  if (in.n_context < 2 * c) return SplitUniform(in, budgets);
  SplitArithmeticAdakv(in, budgets);
}

// kvpress: in floating point. A layer's number includes the window, which is
// added to the budget. The split is uniform if the schedule does not fit.
void SplitArithmeticKvpress(const SplitInput& in, std::span<uint32_t> budgets) {
  const size_t n = budgets.size();
  const double window = in.n_recent;
  // Rounded twice, as in the original: it decides how halves round.
  const double capacity = window + in.exact_budget;
  const double c = capacity - window;
  double lowest = c / in.policy.beta;
  double highest = 2.0 * c - lowest;
  if (highest > in.n_context - window) {
    highest = in.n_context - window;
    lowest = 2.0 * c - highest;
  }
  // nearbyint rounds halves to even, as the original does.
  const bool fits =
      in.n_context >= highest && highest >= lowest && lowest >= window;
  const double step = n > 1 ? (highest - lowest) / (n - 1) : 0.0;
  for (size_t l = 0; l < n; ++l) {
    const double exact = fits && n > 1 ? highest - l * step : in.exact_budget;
    budgets[l] = static_cast<uint32_t>(
        std::clamp(std::nearbyint(exact), static_cast<double>(in.least),
                   static_cast<double>(in.n_context)));
  }
}

}  // namespace kvevict
