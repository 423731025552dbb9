// The workspace of an eviction has the size of MaxTotalBudget(), so no context may
// ask for more.
#include "core/budgets/budgets.h"

#include <criterion/criterion.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/policy/policy.h"
#include "core/policy/policy_text.h"
#include "kvevict/experimental.h"
#include "tests/kernels/random.h"
#include "tests/oracle/layer_measures.h"

namespace kvevict {
namespace {

std::string RandomPolicyText(Random& random) {
  const char* const kSplits[] = {"uniform", "geometric", "arithmetic-kvf",
                                 "arithmetic-kvpress", "arithmetic-adakv"};
  const char* const kKinds[] = {"custom", "snapkv", "streaming-llm", "random"};
  std::string budget = std::to_string(2 + random.Below(200));
  if (random.Below(2) == 0)
    budget = "0." + std::to_string(1 + random.Below(99));
  const std::string kind = kKinds[random.Below(4)];
  return kind + ":budget=" + budget +
         ",sink=" + std::to_string(random.Below(60)) +
         ",recent=" + std::to_string(random.Below(60)) +
         (kind == "snapkv" ? ",window=" + std::to_string(1 + random.Below(40))
                           : "") +
         ",split=" + kSplits[random.Below(5)] + ",select_block=" +
         std::to_string(1 + random.Below(2) * random.Below(30)) +
         ",beta=" + std::to_string(1 + random.Below(40)) + ",alpha=0." +
         std::to_string(1 + random.Below(9));
}

TestSuite(budgets);

Test(budgets, no_context_needs_more_than_the_bound) {
  Random random(TestSeed("budgets/no_context_needs_more_than_the_bound"));
  int n_evicting = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::string text = RandomPolicyText(random);
    Policy policy;
    if (!ParsePolicy(text, &policy).ok()) continue;
    const uint32_t n_layers = 1 + random.Below(12);
    const uint32_t max_tokens = 10 + random.Below(500);
    const uint32_t n_context = 1 + random.Below(max_tokens);
    std::vector<uint32_t> budgets(n_layers);
    if (!LayerBudgets(policy, n_context, budgets).ok()) continue;
    size_t total = 0;
    for (uint32_t budget : budgets) {
      if (budget < n_context) total += budget;
    }
    if (total > MaxTotalBudget(policy, max_tokens, n_layers)) {
      cr_assert_fail("%s, %u layers, %u of %u tokens: %zu > %zu", text.c_str(),
                     n_layers, n_context, max_tokens, total,
                     MaxTotalBudget(policy, max_tokens, n_layers));
    }
    n_evicting += total > 0;
  }
  cr_assert_gt(n_evicting, 10000);
}

// SplitCake()'s tokens for preferences, beyond the least.
std::vector<uint32_t> CakeOf(const std::vector<LayerMeasure>& layers,
                             const std::string& keys, uint32_t n_context) {
  Policy policy;
  cr_assert(ParsePolicy("cake:window=4," + keys, &policy).ok(), "%s",
            keys.c_str());
  std::vector<uint32_t> budgets(layers.size());
  cr_assert(LayerBudgets(policy, n_context, layers, 0, budgets).ok());
  for (uint32_t& budget : budgets) budget -= 4;
  return budgets;
}

std::vector<LayerMeasure> Layers(const std::vector<float>& entropies) {
  std::vector<LayerMeasure> layers;
  for (float entropy : entropies) layers.push_back({entropy, 1.0f});
  return layers;
}

// The oracle has shares of preferences above 0 alone.
Test(budgets, cake_of_layers_without_a_preference) {
  using Budgets = std::vector<uint32_t>;
  const auto of = [](const std::vector<float>& entropies,
                     const std::string& keys, uint32_t n_context) {
    return CakeOf(Layers(entropies), keys, n_context);
  };
  // a layer without preference gets nothing; if none has one, all are alike
  cr_expect(of({NAN, 2, 2}, "budget=12", 100) == Budgets({0, 12, 12}));
  cr_expect(of({INFINITY, -1, 2}, "budget=12", 100) == Budgets({0, 0, 24}));
  cr_expect(of({NAN, 0, -1}, "budget=12", 100) == Budgets({8, 8, 8}));
  cr_expect(of({3}, "budget=12", 100) == Budgets({8}));
  // beyond what a double holds
  cr_expect(of({2e30f, 1e30f}, "budget=14,tau1=0.01", 100) == Budgets({20, 0}));
}

Test(budgets, cake_is_the_oracles) {
  Random random(TestSeed("budgets/cake_is_the_oracles"));
  int n_exact = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t n = 1 + random.Below(20);
    const uint32_t budget = 5 + random.Below(100);
    const uint32_t n_past = budget - 4 + 1 + random.Below(2 * budget);
    std::vector<LayerMeasure> layers(n);
    std::vector<double> preferences(n);
    for (uint32_t l = 0; l < n; ++l) {
      layers[l] = {std::exp(3.0f * random.Gaussian()),
                   std::exp(2.0f * random.Gaussian())};
      preferences[l] = std::pow(double{layers[l].first}, 1 / 1.5) *
                       std::pow(double{layers[l].variance}, 1 / 0.5);
    }
    std::vector<uint64_t> expected(n);
    const double nearest =
        oracle_split_cake(preferences.data(), n, uint64_t{budget - 4} * n,
                          n_past, expected.data());
    const std::vector<uint32_t> got =
        CakeOf(layers, "tau1=1.5,tau2=0.5,budget=" + std::to_string(budget),
               n_past + 4);
    if (nearest < 1e-12) continue;
    ++n_exact;
    for (uint32_t l = 0; l < n; ++l) {
      cr_assert(got[l] == expected[l], "case %d, layer %u: %u, not %u", i, l,
                got[l], static_cast<uint32_t>(expected[l]));
    }
  }
  cr_assert_gt(n_exact, 19000);
}

Test(budgets, lazy_layers_keep_the_budget) {
  Policy policy;
  cr_assert(
      ParsePolicy("snapkv:budget=40,window=4,split=lazy,lazy=0.5", &policy)
          .ok());
  const std::vector<LayerMeasure> layers = {{0.5f}, {0.51f}, {NAN}, {1.0f}};
  std::vector<uint32_t> budgets(4);
  cr_assert(LayerBudgets(policy, 100, layers, 0, budgets).ok());
  cr_expect(budgets == std::vector<uint32_t>({100, 40, 100, 40}));
  policy.lazy = 1.0;  // never, whatever rounding says
  const std::vector<LayerMeasure> all(4, LayerMeasure{1.0001f});
  cr_assert(LayerBudgets(policy, 100, all, 0, budgets).ok());
  cr_expect(budgets == std::vector<uint32_t>(4, 100));
}

}  // namespace
}  // namespace kvevict
