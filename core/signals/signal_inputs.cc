#include "core/signals/signal_inputs.h"

#include "core/view/view.h"
#include "kvevict/experimental.h"

namespace kvevict {
namespace {

constexpr auto kElement = static_cast<int64_t>(sizeof(float));

// The shape of floats that an operation reads: [n_heads, n_rows, n], packed
// within a head.
struct Shape {
  uint32_t n_heads;
  uint32_t n_rows;
  uint32_t n;
};

Status CheckPacked(const char* name, const char* stride_name, int64_t stride,
                   int64_t wanted) {
  if (stride == wanted) return Status();
  return InvalidArgument("%s.%s %lld is not %lld", name, stride_name,
                         static_cast<long long>(stride),
                         static_cast<long long>(wanted));
}

Status FindRows(const char* name, const kvevict_plane& given,
                const Shape& shape, FloatRows* out) {
  const int64_t row = kElement * shape.n;
  const kvevict_plane plane = WithPackedStrides(given, row, shape.n_rows);
  const int64_t head = plane.head_stride_bytes;
  KV_RETURN_IF_ERROR(ValidateRows(name, plane, KVEVICT_DTYPE_F32, shape.n,
                                  shape.n_heads, shape.n_rows));
  if (shape.n > 1) {
    KV_RETURN_IF_ERROR(CheckPacked(name, "element_stride_bytes",
                                   ElementStride(plane), kElement));
  }
  if (shape.n_rows > 1) {
    KV_RETURN_IF_ERROR(
        CheckPacked(name, "token_stride_bytes", plane.token_stride_bytes, row));
  }
  if (shape.n_heads > 1 &&
      (head < row * shape.n_rows || head % kElement != 0)) {
    return InvalidArgument(
        "%s.head_stride_bytes %lld is not a multiple of %lld, at least %lld",
        name, static_cast<long long>(head), static_cast<long long>(kElement),
        static_cast<long long>(row * shape.n_rows));
  }
  if (plane.data % sizeof(float) != 0) {
    return InvalidArgument("%s.data 0x%llx is not aligned to %zu", name,
                           static_cast<unsigned long long>(plane.data),
                           sizeof(float));
  }
  out->data = reinterpret_cast<const float*>(plane.data);
  out->head_stride = static_cast<uint64_t>(head) / sizeof(float);
  return Status();
}

kvevict_plane PackedLse(const kvevict_plane& rows, uint32_t n_rows) {
  return WithPackedStrides(rows, kElement, n_rows);
}

// A stride of 0 would make all query rows the first one: it was forgotten.
Status CheckStep(const char* name, const char* stride_name, const char* what,
                 uint32_t n, int64_t stride) {
  if (n <= 1 || stride != 0) return Status();
  return InvalidArgument("%s.%s is 0 for %u %s", name, stride_name, n, what);
}

Status CheckQueryPlane(const char* name, const kvevict_layer_geometry& layer,
                       uint32_t n_rows, const kvevict_plane& queries) {
  KV_RETURN_IF_ERROR(ValidateRows(name, queries, layer.q_dtype,
                                  layer.k_head_dim, layer.n_q_heads, n_rows));
  KV_RETURN_IF_ERROR(CheckStep(name, "head_stride_bytes", "heads",
                               layer.n_q_heads, queries.head_stride_bytes));
  return CheckStep(name, "token_stride_bytes", "rows", n_rows,
                   queries.token_stride_bytes);
}

Status CheckGiven(const char* name, const kvevict_plane* plane,
                  const SignalInfo& signal) {
  if (plane != nullptr) return Status();
  if (signal.Needs(kSums)) {
    return InvalidArgument(
        "inputs.%s is NULL, queries are NULL and no attention_sums were "
        "observed, but the policy scores by %s",
        name, signal.text);
  }
  if (signal.Needs(kScores)) {
    return InvalidArgument(
        "inputs.%s is NULL and no scores were observed, but the policy scores "
        "by %s",
        name, signal.text);
  }
  return InvalidArgument("inputs.%s is NULL, but the policy scores by %s", name,
                         signal.text);
}

// One row for all heads is possible only if all heads hold the same slots.
Status FindSumHeads(const PlanLayer& layer, uint32_t given, uint32_t* out) {
  const kvevict_layer_geometry& g = layer.geometry;
  *out = given == 0 ? g.n_q_heads : given;
  if (*out == g.n_q_heads || *out == g.n_kv_heads) return Status();
  if (*out == 1 && layer.n_lists == 1) return Status();
  return InvalidArgument(
      "inputs.n_sum_heads %u is not 0, n_q_heads %u or n_kv_heads %u%s", given,
      g.n_q_heads, g.n_kv_heads,
      layer.n_lists == 1 ? ", nor 1" : "; 1 needs scope layer or model");
}

// Checks the reference queries that the policy has, and writes where they are.
// An error if it has none and some are given.
Status FindReference(const Plan& plan, const PlanLayer& layer,
                     const LayerInputs& inputs, ScoreJob* out) {
  const Policy& policy = plan.policy();
  out->reference = nullptr;
  out->reference_positions = nullptr;
  if (!TakesReference(policy)) {
    if (inputs.reference_queries == nullptr && inputs.n_reference_rows == 0) {
      return Status();
    }
    return InvalidArgument(
        "inputs.n_reference_rows %u of reference_queries, but policy %s has %s",
        inputs.n_reference_rows, InfoOf(policy.kind).name,
        plan.signal().HasWindow() ? "reference 0" : "no reference queries");
  }
  if (inputs.reference_queries == nullptr) {
    if (!HasReference(policy))
      return Status();  // an eviction needs them to fit
    return InvalidArgument(
        "inputs.reference_queries is NULL, but the policy has reference %u",
        policy.reference);
  }
  if (inputs.n_reference_rows != policy.reference) {
    return InvalidArgument("inputs.n_reference_rows %u is not reference %u",
                           inputs.n_reference_rows, policy.reference);
  }
  KV_RETURN_IF_ERROR(CheckQueryPlane("reference_queries", layer.geometry,
                                     policy.reference,
                                     *inputs.reference_queries));
  out->reference = inputs.reference_queries;
  out->reference_positions = inputs.reference_positions;
  if (inputs.reference_positions == nullptr) return Status();
  const auto address = reinterpret_cast<uintptr_t>(inputs.reference_positions);
  if (address % sizeof(int32_t) != 0) {
    return InvalidArgument("reference_positions 0x%llx is not aligned to %zu",
                           static_cast<unsigned long long>(address),
                           sizeof(int32_t));
  }
  if (!plan.context().backend().on_host) return Status();
  for (uint32_t r = 0; r < policy.reference; ++r) {
    if (inputs.reference_positions[r] >= 0) continue;
    return InvalidArgument("reference_positions[%u] %d < 0", r,
                           inputs.reference_positions[r]);
  }
  return Status();
}

}  // namespace

QueryRows QueryRowsOf(const kvevict_plane& queries, uint32_t n_rows) {
  QueryRows rows;
  rows.n_rows = n_rows;
  rows.rows.base = reinterpret_cast<const uint8_t*>(queries.data);
  rows.rows.row_stride = queries.token_stride_bytes;
  rows.rows.element_stride = ElementStride(queries);
  rows.rows.dtype = static_cast<DType>(queries.dtype);
  rows.head_stride = queries.head_stride_bytes;
  return rows;
}

Status CheckQueryRows(const kvevict_layer_geometry& layer, uint32_t n_rows,
                      const LayerInputs& inputs) {
  if (inputs.queries != nullptr) {
    KV_RETURN_IF_ERROR(
        CheckQueryPlane("queries", layer, n_rows, *inputs.queries));
  }
  if (inputs.row_lse == nullptr) return Status();
  return ValidateRows("row_lse", PackedLse(*inputs.row_lse, n_rows),
                      KVEVICT_DTYPE_F32, 1, layer.n_q_heads, n_rows);
}

bool IsScoredByQueries(const Plan& plan, const LayerInputs& inputs) {
  if (plan.signal().Needs(kQueries)) return true;
  return plan.MayReadQueries() && inputs.attention_sums == nullptr &&
         inputs.queries != nullptr;
}

Status FindQueryCount(const Plan& plan, uint32_t n_tokens,
                      const LayerInputs& inputs, uint32_t* out) {
  const uint32_t n = inputs.n_query_rows;
  if (plan.signal().HasWindow()) {
    *out = plan.policy().window.count;
    if (n == 0 || n == *out) return Status();
    return InvalidArgument("inputs.n_query_rows %u is not 0 or window %u", n,
                           *out);
  }
  *out = n == 0 ? n_tokens : n;
  if (plan.signal().Needs(kAllQueries) && *out != n_tokens) {
    return InvalidArgument("inputs.n_query_rows %u is not 0 or %u slots held",
                           n, n_tokens);
  }
  if (n <= n_tokens) return Status();
  return InvalidArgument("inputs.n_query_rows %u > %u slots held", n, n_tokens);
}

Status FindQueries(const Plan& plan, const PlanLayer& layer, uint32_t n_rows,
                   const LayerInputs& inputs, ScoreJob* out) {
  KV_RETURN_IF_ERROR(CheckGiven("queries", inputs.queries, plan.signal()));
  LayerInputs read = inputs;
  if (NeedOf(plan.policy(), KVEVICT_INPUT_ROW_LSE) == KVEVICT_NEED_NONE) {
    read.row_lse = nullptr;
  }
  KV_RETURN_IF_ERROR(CheckQueryRows(layer.geometry, n_rows, read));
  QueryRows& rows = out->queries;
  rows = QueryRowsOf(*inputs.queries, n_rows);
  if (read.row_lse != nullptr) {
    const kvevict_plane lse = PackedLse(*read.row_lse, n_rows);
    rows.lse = reinterpret_cast<const float*>(lse.data);
    rows.lse_row_stride = lse.token_stride_bytes;
    rows.lse_head_stride = lse.head_stride_bytes;
  }
  return Status();
}

Status FindChunkSums(const Plan& plan, const PlanLayer& layer, uint32_t n_slots,
                     const LayerInputs& inputs, FloatRows* out,
                     uint32_t* out_n_heads) {
  KV_RETURN_IF_ERROR(FindSumHeads(layer, inputs.n_sum_heads, out_n_heads));
  const uint32_t n_rows = plan.SumRowsOf(layer);
  if (*out_n_heads < n_rows) {
    return InvalidArgument(
        "inputs.n_sum_heads %u < %u, the rows of sums that the policy has",
        *out_n_heads, n_rows);
  }
  return FindRows("attention_sums", *inputs.attention_sums,
                  {*out_n_heads, n_slots, 1}, out);
}

Status FindChunkScores(const PlanLayer& layer, uint32_t n_rows,
                       const LayerInputs& inputs, FloatRows* out) {
  return FindRows("scores", *inputs.scores,
                  {layer.geometry.n_kv_heads, n_rows, 1}, out);
}

Status FindInputs(const Plan& plan, const PlanLayer& layer, uint32_t n_tokens,
                  const LayerInputs& inputs, ScoreJob* out) {
  const kvevict_layer_geometry& g = layer.geometry;
  const SignalInfo& signal = plan.signal();
  const bool makes_sums =
      signal.Needs(kSums) && IsScoredByQueries(plan, inputs);
  const auto find = [&](kvevict_input input, const char* name,
                        const kvevict_plane* plane, const Shape& shape,
                        FloatRows* rows) {
    const kvevict_need need = ScoringNeedOf(plan.policy(), input);
    if (need == KVEVICT_NEED_NONE) return Status();
    if (need == KVEVICT_NEED_OPTIONAL && plane == nullptr) return Status();
    KV_RETURN_IF_ERROR(CheckGiven(name, plane, signal));
    return FindRows(name, *plane, shape, rows);
  };
  out->queries = QueryRows();
  out->sinks = plan.SinksOf(layer);
  KV_RETURN_IF_ERROR(FindReference(plan, layer, inputs, out));
  if (signal.Needs(kSums)) {
    KV_RETURN_IF_ERROR(
        FindSumHeads(layer, inputs.n_sum_heads, &out->n_sum_heads));
  }
  KV_RETURN_IF_ERROR(find(KVEVICT_INPUT_SCORES, "scores", inputs.scores,
                          {g.n_kv_heads, n_tokens, 1}, &out->caller));
  if (makes_sums) {
    out->n_sum_heads = g.n_q_heads;
  } else if (signal.Needs(kSums)) {
    KV_RETURN_IF_ERROR(
        CheckGiven("attention_sums", inputs.attention_sums, signal));
    KV_RETURN_IF_ERROR(find(KVEVICT_INPUT_ATTENTION_SUMS, "attention_sums",
                            inputs.attention_sums,
                            {out->n_sum_heads, n_tokens, 1}, &out->sums));
  }
  KV_RETURN_IF_ERROR(find(KVEVICT_INPUT_QUERY_MEAN, "query_mean",
                          inputs.query_mean, {g.n_q_heads, 1, g.k_head_dim},
                          &out->statistics));
  KV_RETURN_IF_ERROR(find(KVEVICT_INPUT_QUERY_COVARIANCE, "query_covariance",
                          inputs.query_covariance,
                          {g.n_q_heads, g.k_head_dim, g.k_head_dim},
                          &out->query_covariance));
  KV_RETURN_IF_ERROR(find(KVEVICT_INPUT_KEY_FILTER, "key_filter",
                          inputs.key_filter, {g.n_kv_heads, 1, g.k_head_dim},
                          &out->statistics));
  KV_RETURN_IF_ERROR(
      find(KVEVICT_INPUT_QUERY_CENTERS, "query_centers", inputs.query_centers,
           {g.n_q_heads, 3, plan.rope().n_frequencies()}, &out->statistics));
  if (ScoringNeedOf(plan.policy(), KVEVICT_INPUT_TOKEN_WEIGHTS) ==
      KVEVICT_NEED_NONE) {
    return Status();
  }
  if (inputs.token_weights == nullptr) {
    return InvalidArgument(
        "inputs.token_weights is NULL, but the policy has weight=given");
  }
  return FindRows("token_weights", *inputs.token_weights,
                  {g.n_kv_heads, n_tokens, 1}, &out->weights);
}

}  // namespace kvevict
