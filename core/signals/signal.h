// Signals: the list, and what each needs.
#ifndef KVEVICT_CORE_SIGNALS_SIGNAL_H_
#define KVEVICT_CORE_SIGNALS_SIGNAL_H_

#include <cstdint>

#include "core/policy/params.h"
#include "core/status.h"
#include "kvevict/experimental.h"

namespace kvevict {

struct Backend;
struct ScoreOp;

enum class Signal {
#define KVEVICT_SIGNAL(Name, text, needs, takes, is_mass, op) k##Name,
#include "core/signals/signals.inc"
#undef KVEVICT_SIGNAL
};

// What a signal is given.
enum SignalNeeds : uint32_t {
  kNothing = 0,
  // Of the caller's.
  kKeys = 1u << KVEVICT_INPUT_KEYS,
  kValues = 1u << KVEVICT_INPUT_VALUES,
  kQueries = 1u << KVEVICT_INPUT_QUERIES,
  kRowLse = 1u << KVEVICT_INPUT_ROW_LSE,
  kScores = 1u << KVEVICT_INPUT_SCORES,
  kSums = 1u << KVEVICT_INPUT_ATTENTION_SUMS,  // or what they can be made of
  kQueryMean = 1u << KVEVICT_INPUT_QUERY_MEAN,
  kQueryCovariance = 1u << KVEVICT_INPUT_QUERY_COVARIANCE,
  kFilter = 1u << KVEVICT_INPUT_KEY_FILTER,
  kTokenWeights = 1u << KVEVICT_INPUT_TOKEN_WEIGHTS,
  kCenters = 1u << KVEVICT_INPUT_QUERY_CENTERS,
  // Of kQueries: of every slot held, not of an observation window.
  kAllQueries = 1u << 28,
  // Of the policy's.
  kPartitions = 1u << 29,  // blocks behind the sinks, each against the next
  kBlock = 1u << 30        // how many tokens it compares; taken: 0 for all
};

struct SignalInfo {
  const char* text;
  uint32_t needs;
  uint32_t takes;
  bool is_mass;  // its numbers are attention, paid or expected, or the caller's
  const ScoreOp* Backend::*op;

  bool Needs(SignalNeeds what) const { return (needs & what) != 0; }
  // By the queries of the last tokens.
  bool HasWindow() const { return Needs(kQueries) && !Needs(kAllQueries); }
  // Its numbers are a query head's, of which a KV head has several.
  bool IsOfQueryHeads() const {
    return (needs & (kQueries | kSums | kQueryMean | kCenters)) != 0;
  }
  bool Ranks() const;  // tokens are chosen by number, not by place alone
};

const SignalInfo& InfoOf(Signal signal);

// The signal of a valid policy.
const SignalInfo& SignalOf(const Policy& policy);

// Of a valid policy's scores: its signal, its weights, its redundancy; and what it
// compares where they leave room.
kvevict_need ScoringNeedOf(const Policy& policy, kvevict_input input);
// Of all that it does: merging reads keys and values too.
kvevict_need NeedOf(const Policy& policy, kvevict_input input);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNAL_H_
