#include "tests/oracle/layer_splits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvevict::oracle {

// On top of what every layer keeps, layer l's share of all tokens is alpha^l / sum.
// A layer that would get more tokens than there are gets all, and the others share
// the rest. Then largest remainders round up, the lower layer first.
void SplitGeometric(const Split& in, uint32_t* budgets, uint32_t n_layers) {
  const uint32_t forced = in.least;
  const long double room = in.n_context - forced;
  std::vector<long double> share(n_layers);
  std::vector<bool> full(n_layers, false);
  long double total = static_cast<long double>(in.resolved.budget - forced) *
                      static_cast<long double>(n_layers);
  for (bool again = true; again;) {
    again = false;
    long double sum = 0, weight = 1;
    for (uint32_t l = 0; l < n_layers; ++l) {
      share[l] = full[l] ? 0 : weight;
      sum += share[l];
      if (!full[l]) weight *= oracle_own(&in.policy, "alpha")->value;
    }
    for (long double& s : share) s = s * total / sum;
    for (uint32_t l = 0; l < n_layers; ++l) {
      if (share[l] <= room) continue;
      full[l] = again = true;
      total -= room;
    }
  }
  long double rest = total;
  for (uint32_t l = 0; l < n_layers; ++l) {
    const long double floor = full[l] ? room : std::floor(share[l]);
    budgets[l] = forced + static_cast<uint32_t>(floor);
    if (!full[l]) rest -= floor;
    share[l] -= std::floor(share[l]);
  }
  // Remainders that differ only by rounding are ties.
  for (long double& s : share) s = std::round(s * 1e9L);
  std::vector<uint32_t> order(n_layers);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return share[a] > share[b]; });
  for (uint32_t i = 0; i < static_cast<uint32_t>(rest); ++i) {
    budgets[order[i]] += 1;
  }
}

namespace {

uint32_t Clamp(double tokens, const Split& in) {
  const double lowest = in.least;
  return static_cast<uint32_t>(
      std::clamp(tokens, lowest, static_cast<double>(in.n_context)));
}

}  // namespace

// KVCache-Factory, with // as in Python: all operands here are >= 0.
void SplitKvf(const Split& in, uint32_t* budgets, uint32_t n_layers) {
  const int64_t window = in.resolved.n_recent;
  const int64_t cap = in.resolved.budget;
  const int64_t c = cap - window;
  const int64_t seen = in.n_context;
  if (n_layers == 1 || seen < 2 * c) return;  // uniform
  int64_t lowest = c / in.policy.beta;
  int64_t highest = 2 * c - lowest;
  if (highest >= seen - window) {
    highest = seen - window;
    lowest = 2 * c - highest;
  }
  const int64_t step = (highest - lowest) / (n_layers - 1);
  for (uint32_t l = 0; l < n_layers; ++l) {
    budgets[l] = Clamp(static_cast<double>(highest - l * step + window), in);
  }
}

// The AdaKV repository: base capacities are one tensor of integers. A layer is
// compressed only if the prompt is at least as long as its capacity and the window.
void SplitAdakv(const Split& in, uint32_t* budgets, uint32_t n_layers) {
  if (n_layers == 1) return;  // divides by 0 there
  const int64_t window = in.resolved.n_recent;
  const int64_t base = in.resolved.budget - window;
  const int64_t past = in.n_context - window;
  int64_t min_num = base / in.policy.beta;
  int64_t max_num = base * 2 - min_num;
  if (max_num >= past) {
    max_num = past;
    min_num = base * 2 - max_num;
  }
  const int64_t steps = (max_num - min_num) / (n_layers - 1);
  for (uint32_t l = 0; l < n_layers; ++l) {
    const int64_t kept = max_num - l * steps + window;
    const bool skips = in.n_context < kept;
    budgets[l] = Clamp(static_cast<double>(skips ? in.n_context : kept), in);
  }
}

// kvpress: S(1 - r) is the budget. The window is on top of it in the schedule,
// and inside the resulting number. round() rounds halves to even.
void SplitKvpress(const Split& in, uint32_t* budgets, uint32_t n_layers) {
  const double window = in.resolved.n_recent;
  const double seen = in.n_context;
  const double capacity = window + in.real_budget;
  double lowest = (capacity - window) / in.policy.beta;
  double highest = (capacity - window) * 2 - lowest;
  if (highest >= seen - window) {
    highest = seen - window;
    lowest = (capacity - window) * 2 - highest;
  }
  const bool fits = seen >= highest && highest >= lowest && lowest >= window;
  for (uint32_t l = 0; l < n_layers; ++l) {
    double tokens = in.real_budget;
    if (fits && n_layers > 1) {
      tokens = highest - l * ((highest - lowest) / (n_layers - 1));
    }
    budgets[l] = Clamp(std::nearbyint(tokens), in);
  }
}

}  // namespace kvevict::oracle
