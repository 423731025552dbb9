#include "tests/oracle/policy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/oracle/layer_splits.h"

namespace {

bool ScoresByAttention(const kvevict_policy& p) {
  return p.kind == KVEVICT_POLICY_SNAPKV ||
         p.kind == KVEVICT_POLICY_PYRAMIDKV || p.kind == KVEVICT_POLICY_TOVA ||
         p.kind == KVEVICT_POLICY_R_KV;
}

// The budget as a real number, before it is rounded and clamped.
double RealBudget(const kvevict_policy& p, uint32_t n_context) {
  if (p.kind == KVEVICT_POLICY_NONE) return n_context;
  if (p.kind == KVEVICT_POLICY_STREAMING_LLM && p.n_recent > 0) {
    return static_cast<double>(p.n_sink) + static_cast<double>(p.n_recent);
  }
  if (p.kind == KVEVICT_POLICY_LAGKV && p.budget_of_partition != 0) {
    // Sinks, all partitions but the last, the rest.
    double kept = 0.0;
    uint32_t left = n_context;
    for (uint32_t i = 0; i < p.n_sink && left > 0; ++i, --left) kept += 1.0;
    while (left >= 2 * p.block) {
      double of_partition = p.budget > 1.0 ? p.budget : p.budget * p.block;
      if (of_partition > p.block) of_partition = p.block;
      kept += std::floor(of_partition);
      left -= p.block;
    }
    return kept + left;
  }
  if (p.budget > 1.0) return p.budget;
  return p.budget * n_context;
}

uint32_t Budget(const kvevict_policy& p, uint32_t n_context) {
  const double tokens = std::floor(RealBudget(p, n_context));
  if (tokens < 1.0) return 1;
  if (tokens > n_context) return n_context;
  return static_cast<uint32_t>(tokens);
}

}  // namespace

bool oracle_resolve(const kvevict_policy* policy, uint32_t n_context,
                    kvevict_resolved_policy* out) {
  const kvevict_policy& p = *policy;
  const uint64_t budget = Budget(p, n_context);
  uint64_t sink = p.n_sink;
  uint64_t recent = p.n_recent;
  bool fits = true;
  if (p.kind == KVEVICT_POLICY_NONE) {
    sink = 0;
    recent = 0;
  } else if (p.kind == KVEVICT_POLICY_STREAMING_LLM) {
    fits = sink < budget;
    recent = budget - sink;  // the window is what the sinks leave
  } else if (ScoresByAttention(p)) {
    if (p.keep_window != 0 && p.obs_window > recent) recent = p.obs_window;
    fits = sink + recent < budget;
  } else {
    fits = sink + recent <= budget;
  }
  if (!fits) return false;
  out->struct_size = sizeof(*out);
  out->budget = static_cast<uint32_t>(budget);
  out->n_sink = static_cast<uint32_t>(sink);
  out->n_recent = static_cast<uint32_t>(recent);
  out->n_selected = static_cast<uint32_t>(budget - sink - recent);
  out->obs_window = ScoresByAttention(p) ? p.obs_window : 0;
  return true;
}

uint32_t oracle_last_tokens(const kvevict_policy* policy,
                            const kvevict_resolved_policy* resolved) {
  return policy->kind == KVEVICT_POLICY_STREAMING_LLM ? 1 : resolved->n_recent;
}

bool oracle_layer_budgets(const kvevict_policy* policy, uint32_t n_context,
                          uint32_t* budgets, uint32_t n_layers) {
  const kvevict_policy& p = *policy;
  const uint32_t budget = Budget(p, n_context);
  std::fill(budgets, budgets + n_layers, budget);
  if (budget == n_context) return true;
  kvevict_resolved_policy resolved;
  if (!oracle_resolve(policy, n_context, &resolved)) return false;
  // A schedule spreads what is left when what must stay is taken off.
  resolved.n_recent = oracle_last_tokens(policy, &resolved);
  resolved.n_selected = budget - resolved.n_sink - resolved.n_recent;
  const kvevict::oracle::Split split = {p, n_context, RealBudget(p, n_context),
                                        resolved};
  switch (p.layer_split) {
    case KVEVICT_LAYER_SPLIT_UNIFORM:
      break;
    case KVEVICT_LAYER_SPLIT_GEOMETRIC:
      SplitGeometric(split, budgets, n_layers);
      break;
    case KVEVICT_LAYER_SPLIT_ARITHMETIC_KVF:
      SplitKvf(split, budgets, n_layers);
      break;
    case KVEVICT_LAYER_SPLIT_ARITHMETIC_KVPRESS:
      SplitKvpress(split, budgets, n_layers);
      break;
  }
  return true;
}
