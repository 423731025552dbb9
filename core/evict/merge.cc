#include "core/evict/merge.h"

#include "core/dtype.h"
#include "core/number_text.h"

namespace kvevict {

Status ValidateMerge(const Merge& merge) {
  const auto rule = static_cast<int>(merge.rule);
  if (rule < 0 || rule > KVEVICT_MERGE_WEIGHTED) {
    return InvalidArgument("merge %d is not in [0, %d]", rule,
                           KVEVICT_MERGE_WEIGHTED);
  }
  // Written so that NaN fails.
  if (!(merge.threshold >= 0.0 && merge.threshold <= 1.0)) {
    return InvalidArgument("merge_threshold %s is not in [0, 1]",
                           NumberText(merge.threshold).c_str());
  }
  if (!(merge.fraction > 0.0 && merge.fraction <= 1.0)) {
    return InvalidArgument("merge_fraction %s is not in (0, 1]",
                           NumberText(merge.fraction).c_str());
  }
  return Status();
}

kvevict_reason MergeReason(const Merge& merge, kvevict_dtype k_dtype,
                           bool has_values, kvevict_dtype v_dtype) {
  const DTypeInfo& k = InfoOf(static_cast<DType>(k_dtype));
  const DTypeInfo& v = InfoOf(static_cast<DType>(v_dtype));
  if (!merge.Merges()) return KVEVICT_REASON_NONE;
  if (!k.can_score) return KVEVICT_REASON_OPAQUE_KEYS;
  if (k.is_quantized()) return KVEVICT_REASON_QUANTIZED_KEYS;
  if (has_values ? !v.can_score : !merge.MergesKeys()) {
    return KVEVICT_REASON_OPAQUE_VALUES;
  }
  if (has_values && v.is_quantized()) return KVEVICT_REASON_QUANTIZED_VALUES;
  return KVEVICT_REASON_NONE;
}

}  // namespace kvevict
