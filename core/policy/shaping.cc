#include "core/policy/shaping.h"

namespace kvevict {

Shaping MakeShaping(const Policy& policy, const SignalInfo& signal,
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
