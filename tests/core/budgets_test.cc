// The workspace of an eviction is as large as MaxTotalBudget() says; no context may ask
// for more.
#include "core/budgets/budgets.h"

#include <criterion/criterion.h>

#include <string>
#include <vector>

#include "core/policy.h"
#include "core/policy_text.h"
#include "tests/kernels/random.h"

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
    kvevict_policy policy;
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

Test(budgets, every_layer_keeps_what_must_stay) {
  Random random(TestSeed("budgets/every_layer_keeps_what_must_stay"));
  for (int i = 0; i < 100000; ++i) {
    const std::string text = RandomPolicyText(random);
    kvevict_policy policy;
    if (!ParsePolicy(text, &policy).ok()) continue;
    const uint32_t n_context = 1 + random.Below(500);
    std::vector<uint32_t> budgets(1 + random.Below(12));
    kvevict_resolved_policy resolved;
    if (!LayerBudgets(policy, n_context, budgets).ok() ||
        !ResolvePolicy(policy, n_context, &resolved).ok()) {
      continue;
    }
    for (uint32_t budget : budgets) {
      const uint32_t n_recent =
          BlocksOf(policy).Recent(ForcedRecentTokens(policy), n_context);
      if (budget < std::min(resolved.n_sink + n_recent, n_context) ||
          budget > n_context) {
        cr_assert_fail("%s of %u: a layer keeps %u", text.c_str(), n_context,
                       budget);
      }
      if ((n_context - budget) % policy.select_block != 0) {
        cr_assert_fail("%s of %u: a layer loses %u", text.c_str(), n_context,
                       n_context - budget);
      }
    }
  }
}

}  // namespace
}  // namespace kvevict
