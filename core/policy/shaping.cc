#include "core/policy/shaping.h"

namespace kvevict {

Shaping MakeShaping(const kvevict_policy& policy, const SignalInfo& signal,
                    uint32_t group_size) {
  Shaping shaping;
  shaping.pool = policy.pool;
  shaping.pool_kernel = policy.pool_kernel;
  shaping.pool_edge = policy.pool_edge;
  shaping.group_reduce = policy.group_reduce;
  if (!signal.IsOfQueryHeads()) return shaping;
  if (signal.HasWindow() && policy.keep_window != 0) {
    shaping.n_unpooled = policy.obs_window;
  }
  const bool commutes = (policy.group_reduce == KVEVICT_REDUCE_MAX) ==
                        (policy.pool == KVEVICT_POOL_MAX);
  if (shaping.Pools() && !commutes &&
      policy.shaping_order == KVEVICT_SHAPING_POOL_THEN_REDUCE) {
    shaping.n_terms = group_size;
  }
  return shaping;
}

}  // namespace kvevict
