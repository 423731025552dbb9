// Policies: the list, their defaults, their meaning in tokens.
#ifndef KVEVICT_CORE_POLICY_H_
#define KVEVICT_CORE_POLICY_H_

#include <cstdint>
#include <span>

#include "core/status.h"

namespace kvevict {

enum class Signal {
#define KVEVICT_SIGNAL(Name, text) k##Name,
#include "core/signals.inc"
#undef KVEVICT_SIGNAL
};

struct PolicyInfo {
  kvevict_policy_kind kind;
  const char* name;
  Signal signal;
  const char* signal_text;
  const char* shaping;
  kvevict_layer_split split;  // default
  const char* split_text;
  const char* trigger;
  const char* paper;
};

std::span<const PolicyInfo> Policies();

// nullptr if `kind` is no policy.
const PolicyInfo* FindPolicy(kvevict_policy_kind kind);

// The signal of a valid policy.
Signal SignalOf(const kvevict_policy& policy);

// Whether tokens are chosen by number (and not by place alone).
bool RanksTokens(Signal signal);

inline constexpr uint32_t kMaxPoolKernel = 1023;  // of every backend

kvevict_policy DefaultPolicy(const PolicyInfo& info);

// Checks all that does not depend on a context length.
Status ValidatePolicy(const kvevict_policy& policy);

// Tokens a valid policy keeps of `n_context`, clamped to [1, n_context].
uint32_t BudgetTokens(const kvevict_policy& policy, uint32_t n_context);

// The same before rounding and clamping.
double ExactBudget(const kvevict_policy& policy, uint32_t n_context);

// Last tokens a valid policy always keeps.
uint32_t RecentTokens(const kvevict_policy& policy);

// Of n_tokens scored ones those that are pooled and ranked: a kept window is
// not.
inline uint32_t PooledTokens(const kvevict_policy& policy, uint32_t n_tokens) {
  return policy.keep_window != 0 ? n_tokens - policy.obs_window : n_tokens;
}

// See kvevict_policy_resolve(). The policy is valid.
Status ResolvePolicy(const kvevict_policy& policy, uint32_t n_context,
                     kvevict_resolved_policy* out);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_H_
