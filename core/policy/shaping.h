// What happens to a signal's numbers before tokens are ranked by them.
#ifndef KVEVICT_CORE_POLICY_SHAPING_H_
#define KVEVICT_CORE_POLICY_SHAPING_H_

#include <cstdint>

#include "core/policy/params.h"
#include "core/signals/signal.h"
#include "core/status.h"

namespace kvevict {

// Pooling along the tokens, and the reduction of a group of query heads. A signal
// with a row per query head reduces its groups itself where that commutes with
// pooling or comes first; otherwise it leaves the rows apart.
struct Shaping {
  Pooling pool;
  PoolEdge edge = PoolEdge::kPad;
  // Rows per KV head that pooling still finds apart, and what makes one of them.
  uint32_t n_terms = 1;
  kvevict_reduce group_reduce = KVEVICT_REDUCE_MEAN;
  // Last tokens that are kept whatever their score: not pooled, +infinity.
  uint32_t n_unpooled = 0;

  bool Pools() const { return pool.kind != PoolKind::kNone && pool.width > 1; }
  // Nothing is left to do.
  bool IsIdentity() const {
    return !Pools() && n_terms == 1 && n_unpooled == 0;
  }
};

// Of a signal's numbers by a valid policy, for a model with group_size query heads
// per KV head.
Shaping MakeShaping(const Policy& policy, const SignalInfo& signal,
                    uint32_t group_size);

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_SHAPING_H_
