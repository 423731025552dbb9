// What a plan cannot do with a layer, and why.
#include "core/dtype.h"
#include "core/kernels/fit_values.h"
#include "core/plan/plan.h"
#include "core/status.h"
#include "core/view/view.h"

namespace kvevict {

bool Plan::CanScore(const PlanLayer& layer) const {
  return ScoreReason(layer) == KVEVICT_REASON_NONE;
}

kvevict_reason Plan::ScoreReason(const PlanLayer& layer,
                                 bool by_queries) const {
  const kvevict_layer_geometry& g = layer.geometry;
  const DTypeInfo& k = InfoOf(static_cast<DType>(g.k_dtype));
  const DTypeInfo& v = InfoOf(static_cast<DType>(g.v_dtype));
  const bool reads_keys = by_queries || ReadsKeys();
  if (reads_keys && !k.can_score) return KVEVICT_REASON_OPAQUE_KEYS;
  if (by_queries || signal().Needs(kQueries)) {
    const DTypeInfo& q = InfoOf(static_cast<DType>(g.q_dtype));
    if (!q.can_score) return KVEVICT_REASON_OPAQUE_QUERIES;
    if (q.is_quantized()) return KVEVICT_REASON_QUANTIZED_QUERIES;
  }
  if (ReadsValues() && (!v.can_score || g.v_head_dim == 0)) {
    return KVEVICT_REASON_OPAQUE_VALUES;
  }
  return KVEVICT_REASON_NONE;
}

Status Plan::CheckCanScore(const PlanLayer& layer, bool by_queries) const {
  const kvevict_reason reason = ScoreReason(layer, by_queries);
  if (reason == KVEVICT_REASON_NONE) return Status();
  return Unsupported("cannot score: %s", ReasonText(reason));
}

kvevict_reason Plan::RotateReason(const PlanLayer& layer) const {
  const auto dtype = static_cast<DType>(layer.geometry.k_dtype);
  if (InfoOf(dtype).is_quantized()) return KVEVICT_REASON_QUANTIZED_KEYS;
  if (!InfoOf(dtype).can_rotate) return KVEVICT_REASON_OPAQUE_KEYS;
  return rope_.n_frequencies() == 0 ? KVEVICT_REASON_NO_ROPE
                                    : KVEVICT_REASON_NONE;
}

Status Plan::CheckCanRotate(const PlanLayer& layer) const {
  const kvevict_reason reason = RotateReason(layer);
  if (reason == KVEVICT_REASON_NONE) return Status();
  return Unsupported("cannot rotate: %s", ReasonText(reason));
}

kvevict_reason Plan::RewriteReason(const PlanLayer& layer) const {
  const kvevict_layer_geometry& g = layer.geometry;
  Merge reads = merge();
  if (FitsValues(policy_)) {
    const DTypeInfo& q = InfoOf(static_cast<DType>(g.q_dtype));
    if (!q.can_score) return KVEVICT_REASON_OPAQUE_QUERIES;
    if (q.is_quantized()) return KVEVICT_REASON_QUANTIZED_QUERIES;
    reads.rule = KVEVICT_MERGE_VALUES;  // which reads and writes the same rows
  }
  return MergeReason(reads, g.k_dtype, HasValues(g), g.v_dtype);
}

Status Plan::CheckCanRewrite(const PlanLayer& layer) const {
  const kvevict_reason reason = RewriteReason(layer);
  if (reason == KVEVICT_REASON_NONE) return Status();
  return Unsupported("cannot %s: %s", merge().Merges() ? "merge" : "fit values",
                     ReasonText(reason));
}

Status Plan::CheckFitRows() const {
  if (!FitsValues(policy_)) return Status();
  for (const PlanLayer& layer : layers_) {
    const uint32_t group = layer.geometry.n_q_heads / layer.geometry.n_kv_heads;
    const uint64_t n = uint64_t{group} * FitRows(policy_);
    if (n <= kMostFitQueries) continue;
    return InvalidArgument(
        "layer %u: fit values with %u queries of each of %u query heads: "
        "%llu > %u, the most of a KV head",
        layer.number, FitRows(policy_), group,
        static_cast<unsigned long long>(n), kMostFitQueries);
  }
  return Status();
}

const char* ReasonText(kvevict_reason reason) {
  switch (reason) {
    case KVEVICT_REASON_NONE:
      return "";
    case KVEVICT_REASON_OPAQUE_KEYS:
      return "k_dtype is opaque: keys can be moved, not read";
    case KVEVICT_REASON_OPAQUE_QUERIES:
      return "q_dtype is opaque: queries cannot be read";
    case KVEVICT_REASON_NO_ROPE:
      return "the geometry has no rope_inv_freq, by which keys rotate";
    case KVEVICT_REASON_NO_FULL_CACHE:
      return "the layer has no cache, or only one of a sliding window";
    case KVEVICT_REASON_OPAQUE_VALUES:
      return "v_dtype is opaque or v_head_dim is 0: no values can be read";
    case KVEVICT_REASON_QUANTIZED_KEYS:
      return "k_dtype is quantized: rotated keys would be rounded again, and "
             "merges and fits take keys of f32, f16 and bf16";
    case KVEVICT_REASON_QUANTIZED_QUERIES:
      return "q_dtype is quantized: queries are f32, f16 or bf16";
    case KVEVICT_REASON_QUANTIZED_VALUES:
      return "v_dtype is quantized: values that change would be rounded again";
    case KVEVICT_REASON_TOKEN_GROUPS:
      return "tokens share scales, or recent rows lie apart: rows cannot move "
             "one by one";
    case KVEVICT_REASON_OPEN_PROMPT:
      return "the policy's prompt is not inside, and "
             "kvevict_sequence_end_prompt() has not been called";
    case KVEVICT_REASON_SMALL_BUDGET:
      return "the context is too short yet: its budget, a ratio, has no room "
             "for what must stay, or it has fewer tokens than the observation "
             "window";
  }
  return "";
}

}  // namespace kvevict
