#include "core/signals/signal.h"

#include <algorithm>

#include "core/backend.h"
#include "core/evict/merge.h"
#include "core/parts.h"
#include "core/policy/policy.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

constexpr SignalInfo kSignals[] = {
#define KVEVICT_SIGNAL(Name, text, needs, takes, is_mass, op) \
  {text, needs, takes, is_mass, &Backend::op, IsBuilt(#op)},
#include "core/signals/signals.inc"
};

}  // namespace

bool SignalInfo::Ranks() const { return op != &Backend::no_score; }

const SignalInfo& InfoOf(Signal signal) {
  return kSignals[static_cast<int>(signal)];
}

const SignalInfo& SignalOf(const Policy& policy) {
  return InfoOf(InfoOf(policy.kind).signal);
}

kvevict_need ScoringNeedOf(const Policy& policy, kvevict_input input) {
  const SignalInfo& signal = SignalOf(policy);
  const uint32_t what = 1u << input;
  uint32_t refining = kNothing;  // needed to change shaped scores
  if (policy.weight == ValueWeight::kNorm) refining |= kValues;
  if (policy.weight == ValueWeight::kGiven) {
    refining |= kTokenWeights;
  }
  if (!policy.secure_values.IsZero()) refining |= kValues;
  if (policy.redundancy > 0.0 || policy.diverse_mass > 0.0) refining |= kKeys;
  if (HasReference(policy)) refining |= kReference;
  uint32_t takes = signal.takes;
  if (signal.Ranks() && AddsLeverage(policy)) {
    refining |= InfoOf(Signal::kLeverage).needs;
    takes |= InfoOf(Signal::kLeverage).takes;
  }
  if (signal.Ranks() && (refining & what) != 0) return KVEVICT_NEED_REQUIRED;
  // All rows need the pass over the keys that log-sum-exps of some would save.
  if (HasReference(policy) && input == KVEVICT_INPUT_ROW_LSE) {
    return KVEVICT_NEED_NONE;
  }
  if (signal.HasWindow() && input == KVEVICT_INPUT_QUERIES) {
    return WindowScores(policy) ? KVEVICT_NEED_REQUIRED : KVEVICT_NEED_NONE;
  }
  if ((takes & what) != 0) return KVEVICT_NEED_OPTIONAL;
  return signal.Needs(static_cast<SignalNeeds>(what)) ? KVEVICT_NEED_REQUIRED
                                                      : KVEVICT_NEED_NONE;
}

kvevict_need NeedOf(const Policy& policy, kvevict_input input) {
  const kvevict_need to_score = ScoringNeedOf(policy, input);
  // The window's queries are needed to score, too.
  uint32_t to_fit = kNothing;
  if (FitsValues(policy)) to_fit = kKeys | kValues;
  if (TakesReference(policy)) to_fit |= kReference;
  if ((to_fit & (1u << input)) != 0) return KVEVICT_NEED_REQUIRED;
  const Merge merge = TouchesNothing(policy) ? Merge() : MergeOf(policy);
  kvevict_need to_merge = KVEVICT_NEED_NONE;
  if (merge.Merges() && input == KVEVICT_INPUT_KEYS) {
    to_merge = KVEVICT_NEED_REQUIRED;
  } else if (merge.Merges() && input == KVEVICT_INPUT_VALUES) {
    // In a layer without values only keys are merged.
    to_merge =
        merge.MergesKeys() ? KVEVICT_NEED_OPTIONAL : KVEVICT_NEED_REQUIRED;
  }
  return std::max(to_score, to_merge);
}

}  // namespace kvevict
