// How a signal's scores are changed before tokens are ranked by them.
#ifndef KVEVICT_CORE_POLICY_SHAPING_H_
#define KVEVICT_CORE_POLICY_SHAPING_H_

#include <cstdint>

#include "core/policy/params.h"
#include "core/signals/signal.h"
#include "core/status.h"

namespace kvevict {

// Pooling along the tokens, and the reduction of a group of query heads. A
// signal with a row per query head reduces its groups itself if that commutes
// with pooling or comes first. Otherwise it leaves the rows apart.
struct Shaping {
  Pooling pool;
  PoolEdge edge = PoolEdge::kPad;
  // Rows per KV head that pooling reads, and how they are then reduced to one.
  uint32_t n_terms = 1;
  kvevict_reduce group_reduce = KVEVICT_REDUCE_MEAN;
  // Last tokens that are always kept: they are not pooled and become +infinity.
  uint32_t n_unpooled = 0;

  bool Pools() const { return pool.kind != PoolKind::kNone && pool.width > 1; }
  // True if shaping changes nothing.
  bool IsIdentity() const {
    return !Pools() && n_terms == 1 && n_unpooled == 0;
  }
};

// True if the signal pools the rows of its window by itself.
inline bool PoolsRows(const Policy& policy) {
  return policy.order == ShapingOrder::kPoolRows;
}

// The shaping of a signal's scores by a valid policy, for a model with
// group_size query heads per KV head.
inline Shaping MakeShaping(const Policy& policy, const SignalInfo& signal,
                           uint32_t group_size) {
  Shaping shaping;
  shaping.pool = policy.pool;
  shaping.edge = policy.edge;
  shaping.group_reduce = policy.group;
  if (!signal.IsOfQueryHeads()) return shaping;
  if (signal.HasWindow() && policy.keep_window) {
    shaping.n_unpooled = policy.window.count;
  }
  if (PoolsRows(policy)) {  // the signal has done the rest
    shaping.pool = {};
    return shaping;
  }
  const bool commutes = (policy.group == KVEVICT_REDUCE_MAX) ==
                        (policy.pool.kind == PoolKind::kMax);
  if (shaping.Pools() && !commutes &&
      policy.order == ShapingOrder::kPoolReduce) {
    shaping.n_terms = group_size;
  }
  return shaping;
}

}  // namespace kvevict

#endif  // KVEVICT_CORE_POLICY_SHAPING_H_
