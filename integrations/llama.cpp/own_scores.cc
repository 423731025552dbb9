#include "own_scores.h"

#include <algorithm>

#include "bytes.h"
#include "error.h"

namespace kvevict::llama {
namespace {

// Tokens that are pooled, and ranked: all but a window that is kept.
uint32_t Ranked(const kvevict_policy& policy, uint32_t n_tokens) {
  return policy.keep_window != 0
             ? n_tokens - std::min(policy.obs_window, n_tokens)
             : n_tokens;
}

void Pool(const kvevict_policy& policy, std::span<float> row) {
  if (policy.pool == KVEVICT_POOL_NONE || policy.pool_kernel <= 1) return;
  const std::vector<float> in(row.begin(), row.end());
  const size_t side = policy.pool_kernel / 2;
  for (size_t t = 0; t < in.size(); ++t) {
    const auto first =
        in.begin() + static_cast<ptrdiff_t>(t - std::min(t, side));
    const auto end =
        in.begin() + static_cast<ptrdiff_t>(std::min(in.size(), t + side + 1));
    if (policy.pool == KVEVICT_POOL_MAX) {
      row[t] = *std::max_element(first, end);
      continue;
    }
    double sum = 0;
    for (auto x = first; x != end; ++x) sum += *x;
    const auto n = policy.pool_edge == KVEVICT_POOL_EDGE_SHRINK
                       ? static_cast<double>(end - first)
                       : static_cast<double>(policy.pool_kernel);
    row[t] = static_cast<float>(sum / n);
  }
}

// One row of a query head joins those of its KV head.
void Reduce(kvevict_reduce reduce, bool first, std::span<const float> from,
            std::span<float> into) {
  for (size_t t = 0; t < into.size(); ++t) {
    into[t] = first                          ? from[t]
              : reduce == KVEVICT_REDUCE_MAX ? std::max(into[t], from[t])
                                             : into[t] + from[t];
  }
}

}  // namespace

kvevict_policy ByOwnScores(const kvevict_policy& policy) {
  const bool held = (policy.kind == KVEVICT_POLICY_SNAPKV ||
                     policy.kind == KVEVICT_POLICY_TOVA) &&
                    policy.window_reduce != KVEVICT_REDUCE_MAX &&
                    policy.row_spread == 0 &&
                    policy.row_weight == KVEVICT_ROW_WEIGHT_NONE &&
                    policy.softmax_keys == KVEVICT_SOFTMAX_CAUSAL &&
                    policy.value_weight == KVEVICT_VALUE_WEIGHT_NONE &&
                    policy.redundancy == 0 && policy.secure == 0 &&
                    (policy.shaping_order == KVEVICT_SHAPING_REDUCE_THEN_POOL ||
                     policy.pool == KVEVICT_POOL_NONE) &&
                    policy.shaping_order != KVEVICT_SHAPING_REDUCE_LOGITS;
  if (!held) {
    Fail(
        KVEVICT_ERROR_UNSUPPORTED,
        "the model caps its logits, or its softmax has sinks: of policies that "
        "score by queries snapkv and tova are held, by mean or sum over rows "
        "and without weights");
  }
  kvevict_policy custom = policy;
  custom.kind = KVEVICT_POLICY_CUSTOM;
  custom.pool = KVEVICT_POOL_NONE;
  if (policy.keep_window != 0) {
    custom.n_recent = std::max(policy.n_recent, policy.obs_window);
  }
  return custom;
}

std::vector<float> WindowScores(
    const kvevict_context* context, const kvevict_policy& policy,
    const LayerShape& shape, std::span<const float> sinks,
    const kvevict_view& view, const kvevict_plane& queries, uint32_t n_tokens) {
  const uint32_t n_rows = policy.obs_window;
  const size_t value_dim =
      shape.v.head_dim > 0 ? shape.v.head_dim : shape.k.head_dim;
  std::vector<float> values(size_t{shape.n_q_heads} * n_rows * value_dim);
  std::vector<float> sums(size_t{shape.n_q_heads} * n_tokens);
  kvevict_plane out = KVEVICT_PLANE_INIT;
  out.data = reinterpret_cast<uint64_t>(values.data());
  out.dtype = KVEVICT_DTYPE_F32;
  out.head_dim = static_cast<uint32_t>(value_dim);
  out.token_stride_bytes = static_cast<int64_t>(value_dim * sizeof(float));
  out.head_stride_bytes = n_rows * out.token_stride_bytes;
  kvevict_plane weights = KVEVICT_PLANE_INIT;
  weights.data = reinterpret_cast<uint64_t>(sums.data());
  weights.dtype = KVEVICT_DTYPE_F32;
  weights.head_dim = 1;
  weights.token_stride_bytes = sizeof(float);
  weights.head_stride_bytes = n_tokens * int64_t{sizeof(float)};

  kvevict_attention_job job = {};
  job.struct_size = sizeof job;
  job.n_tokens = n_tokens;
  job.view = &view;
  job.queries = &queries;
  job.out = &out;
  job.n_q_heads = shape.n_q_heads;
  job.n_queries = n_rows;
  job.softmax_scale = shape.scale;
  job.logit_softcap = shape.softcap;
  job.sink_logits = sinks.empty() ? nullptr : sinks.data();
  job.sink_logits_len = sinks.size();
  job.attention_sums = &weights;
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_attend_workspace(context, &job, 1, &size));
  const Bytes workspace(size.best_bytes + size.alignment);
  Check(kvevict_attend(context, &job, 1, workspace.Aligned(size.alignment),
                       size.best_bytes, nullptr));

  const uint32_t group = shape.n_q_heads / shape.n_kv_heads;
  const uint32_t n_ranked = Ranked(policy, n_tokens);
  float factor = 1;
  if (policy.window_reduce == KVEVICT_REDUCE_MEAN) {
    factor /= static_cast<float>(n_rows);
  }
  if (policy.group_reduce == KVEVICT_REDUCE_MEAN) {
    factor /= static_cast<float>(group);
  }
  std::vector<float> scores(size_t{shape.n_kv_heads} * n_tokens);
  for (uint32_t q = 0; q < shape.n_q_heads; ++q) {
    const std::span<float> row(scores.data() + size_t{q / group} * n_tokens,
                               n_ranked);
    Reduce(policy.group_reduce, q % group == 0,
           {sums.data() + size_t{q} * n_tokens, n_ranked}, row);
    if (q % group + 1 < group) continue;
    for (float& score : row) score *= factor;
    Pool(policy, row);
  }
  return scores;
}

}  // namespace kvevict::llama
