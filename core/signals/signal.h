// The list of signals, and what each needs.
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
};

// What a signal needs or takes.
enum SignalNeeds : uint32_t {
  kNothing = 0,
  // Inputs of the caller.
  kKeys = 1u << KVEVICT_INPUT_KEYS,
  kValues = 1u << KVEVICT_INPUT_VALUES,
  kQueries = 1u << KVEVICT_INPUT_QUERIES,
  kRowLse = 1u << KVEVICT_INPUT_ROW_LSE,
  kScores = 1u << KVEVICT_INPUT_SCORES,
  // or queries to compute them from
  kSums = 1u << KVEVICT_INPUT_ATTENTION_SUMS,
  kQueryMean = 1u << KVEVICT_INPUT_QUERY_MEAN,
  kQueryCovariance = 1u << KVEVICT_INPUT_QUERY_COVARIANCE,
  kFilter = 1u << KVEVICT_INPUT_KEY_FILTER,
  kTokenWeights = 1u << KVEVICT_INPUT_TOKEN_WEIGHTS,
  kCenters = 1u << KVEVICT_INPUT_QUERY_CENTERS,
  kPositions = 1u << KVEVICT_INPUT_POSITIONS,  // or slots, for the lack of them
  kReference = 1u << KVEVICT_INPUT_REFERENCE_QUERIES,
  // The frequencies of RoPE.
  kRope = 1u << 27,
  // With kQueries: of every slot held, not only of an observation window.
  kAllQueries = 1u << 28,
  // The policy's `block`: tokens compared at once. If only taken, 0 means all.
  kBlock = 1u << 29
};

struct SignalInfo {
  const char* text;
  uint32_t needs;
  uint32_t takes;
  bool is_mass;  // scores are attention, observed or expected, or the caller's
  const ScoreOp* Backend::*op;
  bool is_built;  // false: refused, see core/parts.h

  bool Needs(SignalNeeds what) const { return (needs & what) != 0; }
  // True if it scores by the queries of the last tokens.
  bool HasWindow() const { return Needs(kQueries) && !Needs(kAllQueries); }
  // True if its scores are per query head. A KV head may have several.
  bool IsOfQueryHeads() const {
    return (needs & (kQueries | kSums | kQueryMean | kCenters)) != 0;
  }
  bool Ranks() const;  // tokens are selected by score, not only by position
};

const SignalInfo& InfoOf(Signal signal);

// The signal of a valid policy.
const SignalInfo& SignalOf(const Policy& policy);

// Whether a valid policy's scores need the input: for its signal, weights,
// redundancy or the comparison of blocks.
kvevict_need ScoringNeedOf(const Policy& policy, kvevict_input input);
// The same for all that the policy does: merging and fitting read keys and values
// too.
kvevict_need NeedOf(const Policy& policy, kvevict_input input);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNALS_SIGNAL_H_
