#include "core/doors.h"

#include <algorithm>
#include <array>

#include "core/budgets/budgets.h"
#include "core/policy.h"
#include "core/view.h"

namespace kvevict {
namespace {

Status CheckTokenCount(uint32_t n_tokens, uint32_t least, const Plan& plan) {
  const uint32_t max_tokens = plan.geometry().max_tokens;
  if (n_tokens >= least && n_tokens <= max_tokens) return Status();
  return InvalidArgument("n_tokens %u is not in [%u, max_tokens %u]", n_tokens,
                         least, max_tokens);
}

// `first` is the place of slots[0] in the caller's array.
Status CheckAscending(const char* name, std::span<const int32_t> slots,
                      size_t first, uint32_t n_tokens) {
  int64_t least = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < least || slots[i] >= int64_t{n_tokens}) {
      return InvalidArgument(
          "%s[%zu] %d: ascending slots in [%lld, n_tokens %u) are wanted", name,
          first + i, slots[i], static_cast<long long>(least), n_tokens);
    }
    least = int64_t{slots[i]} + 1;
  }
  return Status();
}

// ---- select ----

// Scores the policy wants for `n_tokens` slots: one row per list's worth of
// heads.
Status CheckScores(const Plan& plan, std::span<const float> scores,
                   uint32_t n_tokens) {
  const kvevict_geometry& g = plan.geometry();
  uint64_t wanted = 0;
  if (RanksTokens(SignalOf(plan.policy()))) {
    wanted = uint64_t{g.n_kv_heads} * n_tokens;
    if (plan.policy().scope == KVEVICT_SCOPE_MODEL) wanted *= g.n_layers;
  }
  if (scores.size() == wanted) return Status();
  return InvalidArgument("scores_len %zu is not %llu", scores.size(),
                         static_cast<unsigned long long>(wanted));
}

Status CheckForced(const kvevict_resolved_policy& resolved,
                   std::span<const int32_t> protected_slots, uint32_t n_tokens,
                   uint32_t n_keep) {
  const auto in_between = [&](int32_t slot) {
    return slot >= int64_t{resolved.n_sink} &&
           slot < int64_t{n_tokens} - resolved.n_recent;
  };
  const uint64_t n_protected =
      std::count_if(protected_slots.begin(), protected_slots.end(), in_between);
  if (uint64_t{resolved.n_sink} + resolved.n_recent + n_protected <= n_keep) {
    return Status();
  }
  return InvalidArgument(
      "budget %u < n_sink %u + n_recent %u + %llu protected slots", n_keep,
      resolved.n_sink, resolved.n_recent,
      static_cast<unsigned long long>(n_protected));
}

}  // namespace

Status ScoreWindow(const Plan& plan, const kvevict_plane& queries,
                   const kvevict_plane* row_lse, const kvevict_view& view,
                   uint32_t n_tokens, std::span<float> scores, void* workspace,
                   size_t workspace_bytes, Stream stream) {
  const Context& context = plan.context();
  const kvevict_geometry& g = plan.geometry();
  const kvevict_policy& policy = plan.policy();
  KV_RETURN_IF_ERROR(plan.CheckCanScore());
  KV_RETURN_IF_ERROR(CheckTokenCount(n_tokens, policy.obs_window, plan));
  if (Status status = ValidateView(view, n_tokens, context.backend().on_host);
      !status.ok()) {
    return Prefixed(status, "view: ");
  }
  if (Status status = MatchGeometry(view, g); !status.ok()) {
    return Prefixed(status, "view: ");
  }
  if (!IsPresent(view.k)) {
    return InvalidArgument("view.k.data is 0: no keys to score");
  }
  KV_RETURN_IF_ERROR(ValidateRows("queries", queries, g.q_dtype, g.k_head_dim,
                                  g.n_q_heads, policy.obs_window));
  if (row_lse != nullptr) {
    KV_RETURN_IF_ERROR(ValidateRows("row_lse", *row_lse, KVEVICT_DTYPE_F32, 1,
                                    g.n_q_heads, policy.obs_window));
  }
  if (scores.size() != uint64_t{g.n_kv_heads} * n_tokens) {
    return InvalidArgument("scores_len %zu is not n_kv_heads %u * n_tokens %u",
                           scores.size(), g.n_kv_heads, n_tokens);
  }
  KV_RETURN_IF_ERROR(CheckWorkspace(context, workspace, workspace_bytes,
                                    plan.score_workspace_bytes()));

  LayerJob job;
  job.view = &view;
  job.n_tokens = n_tokens;
  job.queries.base = reinterpret_cast<const uint8_t*>(queries.data);
  job.queries.row_stride = queries.token_stride_bytes;
  job.queries.element_stride = ElementStride(queries);
  job.queries.dtype = static_cast<DType>(queries.dtype);
  job.query_head_stride = queries.head_stride_bytes;
  if (row_lse != nullptr) {
    job.row_lse = reinterpret_cast<const float*>(row_lse->data);
    job.lse_row_stride = row_lse->token_stride_bytes;
    job.lse_head_stride = row_lse->head_stride_bytes;
  }
  job.scores = scores.data();
  return context.backend().score_window(
      context, stream,
      {g,
       policy,
       plan.softmax_scale(),
       {&job, 1},
       {static_cast<uint8_t*>(workspace), plan.score_workspace_bytes()}});
}

Status Select(const Plan& plan, uint32_t layer, std::span<const float> scores,
              uint32_t n_tokens, std::span<const int32_t> protected_slots,
              std::span<int32_t> keep, void* workspace, size_t workspace_bytes,
              uint32_t* out_n_keep, Stream stream) {
  const Context& context = plan.context();
  const kvevict_geometry& g = plan.geometry();
  const kvevict_policy& policy = plan.policy();
  const bool model = EffectiveScope(policy) == KVEVICT_SCOPE_MODEL;
  if (layer >= g.n_layers) {
    return InvalidArgument("layer %u >= n_layers %u", layer, g.n_layers);
  }
  if (model && layer != 0) {
    return InvalidArgument("layer %u is not 0 with scope model", layer);
  }
  KV_RETURN_IF_ERROR(CheckTokenCount(n_tokens, 1, plan));
  KV_RETURN_IF_ERROR(CheckScores(plan, scores, n_tokens));
  KV_RETURN_IF_ERROR(
      CheckAscending("protected_slots", protected_slots, 0, n_tokens));
  KV_RETURN_IF_ERROR(CheckWorkspace(context, workspace, workspace_bytes,
                                    plan.select_workspace().bytes));
  std::array<uint32_t, kMaxLayers> budgets;
  KV_RETURN_IF_ERROR(
      LayerBudgets(policy, n_tokens, std::span(budgets).first(g.n_layers)));

  const uint32_t n_keep = budgets[layer];
  // Heads of a policy that ranks nothing are alike, but the caller still gets a list
  // for each.
  const uint32_t n_lists =
      policy.scope == KVEVICT_SCOPE_KV_HEAD ? g.n_kv_heads : 1;
  if (uint64_t{n_lists} * n_keep > keep.size()) {
    return InvalidArgument("keep_capacity %zu < %u lists * %u tokens",
                           keep.size(), n_lists, n_keep);
  }
  LayerJob job;
  job.layer = layer;
  job.n_tokens = n_tokens;
  job.n_keep = n_keep;
  job.keep = keep.data();
  if (n_keep == n_tokens) {
    job.new_positions = keep.data();  // positions are slots here
    job.keep = nullptr;
    KV_RETURN_IF_ERROR(
        context.backend().map_positions(context, stream, {{&job, 1}, n_lists}));
    *out_n_keep = n_keep;
    return Status();
  }
  kvevict_resolved_policy resolved;
  KV_RETURN_IF_ERROR(ResolvePolicy(policy, n_tokens, &resolved));
  KV_RETURN_IF_ERROR(CheckForced(resolved, protected_slots, n_tokens, n_keep));

  uint8_t* const scratch = static_cast<uint8_t*>(workspace);
  const SelectWorkspace& layout = plan.select_workspace();
  job.scores = const_cast<float*>(scores.data());  // keys lie elsewhere
  job.keys = reinterpret_cast<uint32_t*>(scratch + layout.keys);
  KV_RETURN_IF_ERROR(context.backend().select(
      context, stream,
      {g,
       policy,
       {&job, 1},
       model ? g.n_layers : 1,
       {resolved.n_sink, resolved.n_recent, protected_slots},
       {scratch + layout.scratch, layout.scratch_bytes},
       n_lists}));
  *out_n_keep = n_keep;
  return Status();
}

Status Compact(const Context& context, const kvevict_view& view,
               uint32_t n_tokens, std::span<const int32_t> keep,
               uint32_t n_keep_lists, Stream stream) {
  const bool on_host = context.backend().on_host;
  if (n_tokens > INT32_MAX) {
    return InvalidArgument("n_tokens %u > %d", n_tokens, INT32_MAX);
  }
  if (Status status = ValidateView(view, n_tokens, on_host); !status.ok()) {
    return Prefixed(status, "view: ");
  }
  if (n_keep_lists != 1 && n_keep_lists != view.n_kv_heads) {
    return InvalidArgument("n_keep_lists %u is not 1 or n_kv_heads %u",
                           n_keep_lists, view.n_kv_heads);
  }
  if (keep.size() % n_keep_lists != 0) {
    return InvalidArgument("keep_len %zu is not a multiple of n_keep_lists %u",
                           keep.size(), n_keep_lists);
  }
  const size_t n_keep = keep.size() / n_keep_lists;
  if (n_keep > n_tokens) {
    return InvalidArgument("keep_len %zu > n_keep_lists %u * n_tokens %u",
                           keep.size(), n_keep_lists, n_tokens);
  }
  for (uint32_t list = 0; on_host && list < n_keep_lists; ++list) {
    KV_RETURN_IF_ERROR(CheckAscending(
        "keep", keep.subspan(list * n_keep, n_keep), list * n_keep, n_tokens));
  }
  LayerJob job;
  job.view = &view;
  job.n_tokens = n_tokens;
  job.n_keep = static_cast<uint32_t>(n_keep);
  job.keep = const_cast<int32_t*>(keep.data());  // compaction only reads it
  return context.backend().compact(context, stream,
                                   {{&job, 1}, n_keep_lists, {}});
}

}  // namespace kvevict
