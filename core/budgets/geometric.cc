// PyramidKV with geometric weights: in addition to what every layer keeps,
// layer l gets alpha^l of the rest.
#include <algorithm>
#include <cmath>

#include "core/budgets/budgets.h"

namespace kvevict {
namespace {

// Remainders that differ by less count as equal. Shares of a budget of 2^20
// tokens carry rounding errors of some 1e-10.
constexpr double kTie = 1e-9;

// The exact share of layer l if `total` is spread over layers first .. n - 1.
// The product comes first, so that equal weights divide exactly.
double Share(double alpha, size_t first, size_t n_layers, size_t l,
             double total) {
  double sum = 0.0;
  double weight = 1.0;
  double mine = 0.0;
  for (size_t i = first; i < n_layers; ++i) {
    if (i == l) mine = weight;
    sum += weight;
    weight *= alpha;
  }
  return mine * total / sum;
}

}  // namespace

// Layers that would get more than the context take all of it. The rest goes to
// the others by their weights, so that the sum stays exact. Rounding is by
// largest remainder, ties to the lower layer.
void SplitGeometric(const SplitInput& in, std::span<uint32_t> budgets) {
  const size_t n = budgets.size();
  const uint32_t available = in.n_context - in.least;
  const double alpha = in.policy.alpha;

  // Weights fall with the layer, so the full layers come first.
  size_t first = 0;
  uint64_t total = uint64_t{in.budget - in.least} * n;
  while (first < n && Share(alpha, first, n, first,
                            static_cast<double>(total)) > available) {
    budgets[first++] = in.n_context;
    total -= available;
  }
  if (first == n) return;

  const double scale =
      Share(alpha, first, n, first, static_cast<double>(total));
  const auto share = [&](size_t l) {
    return alpha == 1.0
               ? scale
               : scale * std::pow(alpha, static_cast<double>(l - first));
  };
  uint64_t given = 0;
  for (size_t l = first; l < n; ++l) {
    budgets[l] = static_cast<uint32_t>(
        std::min<double>(std::floor(share(l)), available));
    given += budgets[l];
  }
  while (given < total) {  // fewer than n rounds
    size_t best = n;
    double best_remainder = -1.0 - kTie;
    for (size_t l = first; l < n; ++l) {
      const double remainder = share(l) - budgets[l];
      if (budgets[l] < available && remainder > best_remainder + kTie) {
        best = l;
        best_remainder = remainder;
      }
    }
    ++budgets[best];
    ++given;
  }
  for (size_t l = first; l < n; ++l) budgets[l] += in.least;
}

}  // namespace kvevict
