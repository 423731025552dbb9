// How rows that compaction drops are merged: see kvevict_merge.
#ifndef KVEVICT_CORE_EVICT_MERGE_H_
#define KVEVICT_CORE_EVICT_MERGE_H_

#include <cstdint>

#include "core/policy/params.h"
#include "core/status.h"

namespace kvevict {

struct Merge {
  kvevict_merge rule = KVEVICT_MERGE_NONE;
  double threshold = 0.0;
  double fraction = 1.0;

  bool operator==(const Merge&) const = default;
  bool Merges() const { return rule != KVEVICT_MERGE_NONE; }
  bool MergesKeys() const {
    return rule == KVEVICT_MERGE_PIVOT || rule == KVEVICT_MERGE_WEIGHTED;
  }
};

inline Merge MergeOf(const Policy& policy) {
  return {policy.merge, policy.merge_threshold, policy.merge_fraction};
}

// Checks the rule and its numbers. Messages name them by their keys.
Status ValidateMerge(const Merge& merge);

// The reason why rows of these dtypes cannot be merged.
kvevict_reason MergeReason(const Merge& merge, kvevict_dtype k_dtype,
                           bool has_values, kvevict_dtype v_dtype);

}  // namespace kvevict

#endif  // KVEVICT_CORE_EVICT_MERGE_H_
