// Signals: the list, and what each needs.
#ifndef KVEVICT_CORE_SIGNAL_H_
#define KVEVICT_CORE_SIGNAL_H_

#include <cstdint>

#include "core/status.h"

namespace kvevict {

struct Backend;
struct ScoreOp;

enum class Signal {
#define KVEVICT_SIGNAL(Name, text, needs, op) k##Name,
#include "core/signals.inc"
#undef KVEVICT_SIGNAL
};

// What a signal has to be given.
enum SignalNeeds : uint32_t {
  kNothing = 0,
  kKeys = 1,     // rows that can be read
  kQueries = 2,  // the last obs_window rows of every query head
  kScores = 4,   // the caller's
  kSeed = 8,
  kValues = 16,  // rows that can be read
  kBlock = 32,   // how many tokens it compares
  kSums = 64,    // attention weights summed over the queries
  kQueryMean = 128,
  kQueryCovariance = 256,  // where it is given
  kFilter = 512,           // a direction per KV head
};

struct SignalInfo {
  const char* text;
  uint32_t needs;
  const ScoreOp* Backend::*op;

  bool Needs(SignalNeeds what) const { return (needs & what) != 0; }
  // Its numbers are a query head's, of which a KV head has several.
  bool IsOfQueryHeads() const {
    return (needs & (kQueries | kSums | kQueryMean)) != 0;
  }
  bool Ranks() const;  // tokens are chosen by number, not by place alone
};

const SignalInfo& InfoOf(Signal signal);

// The signal of a valid policy.
const SignalInfo& SignalOf(const kvevict_policy& policy);

}  // namespace kvevict

#endif  // KVEVICT_CORE_SIGNAL_H_
