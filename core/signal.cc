#include "core/signal.h"

#include "core/backend.h"
#include "core/policy.h"

namespace kvevict {
namespace {

constexpr SignalInfo kSignals[] = {
#define KVEVICT_SIGNAL(Name, text, needs, op) {text, needs, &Backend::op},
#include "core/signals.inc"
#undef KVEVICT_SIGNAL
};

}  // namespace

bool SignalInfo::Ranks() const { return op != &Backend::no_score; }

const SignalInfo& InfoOf(Signal signal) {
  return kSignals[static_cast<int>(signal)];
}

const SignalInfo& SignalOf(const kvevict_policy& policy) {
  return InfoOf(FindPolicy(policy.kind)->signal);
}

}  // namespace kvevict
