#include "core/doors.h"

#include <algorithm>
#include <array>

#include "core/budgets/budgets.h"
#include "core/policy.h"
#include "core/score.h"
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
  if (plan.signal().Ranks()) {
    wanted = uint64_t{g.n_kv_heads} * n_tokens;
    if (plan.policy().scope == KVEVICT_SCOPE_MODEL) wanted *= g.n_layers;
  }
  if (scores.size() == wanted) return Status();
  return InvalidArgument("scores_len %zu is not %llu", scores.size(),
                         static_cast<unsigned long long>(wanted));
}

Status CheckForced(const Forced& forced, uint32_t n_tokens, uint32_t n_keep) {
  const auto in_between = [&](int32_t slot) {
    return slot >= int64_t{forced.n_sink} &&
           slot < int64_t{n_tokens} - forced.n_recent;
  };
  const uint64_t n_protected =
      std::count_if(forced.protect.begin(), forced.protect.end(), in_between);
  if (uint64_t{forced.n_sink} + forced.n_recent + n_protected <= n_keep) {
    return Status();
  }
  return InvalidArgument(
      "budget %u < sink %u + recent %u + %llu protected slots", n_keep,
      forced.n_sink, forced.n_recent,
      static_cast<unsigned long long>(n_protected));
}

// ---- compact, reorder ----

// A view of which n_tokens slots will be addressed; `name` is their number's.
Status CheckMovedView(const Context& context, const kvevict_view& view,
                      const char* name, uint32_t n_tokens) {
  if (n_tokens > INT32_MAX) {
    return InvalidArgument("%s %u > %d", name, n_tokens, INT32_MAX);
  }
  const Status status = ValidateView(view, n_tokens, context.backend().on_host);
  return status.ok() ? status : Prefixed(status, "view: ");
}

Status CheckListCount(const char* name, uint32_t n_lists,
                      const kvevict_view& view) {
  if (n_lists == 1 || n_lists == view.n_kv_heads) return Status();
  return InvalidArgument("%s %u is not 1 or n_kv_heads %u", name, n_lists,
                         view.n_kv_heads);
}

// Slots per list, end to end, and what the caller calls them.
struct SlotLists {
  const char* name;
  const char* n_name;
  std::span<const int32_t> slots;
  uint32_t n_lists;
};

// What moves the listed rows of a view to its first slots.
Status MakeMoveJob(const Context& context, const kvevict_view& view,
                   uint32_t n_tokens, const SlotLists& lists, MoveJob* out) {
  KV_RETURN_IF_ERROR(CheckMovedView(context, view, "n_tokens", n_tokens));
  KV_RETURN_IF_ERROR(CheckListCount(lists.n_name, lists.n_lists, view));
  if (lists.slots.size() % lists.n_lists != 0) {
    return InvalidArgument("%s_len %zu is not a multiple of %s %u", lists.name,
                           lists.slots.size(), lists.n_name, lists.n_lists);
  }
  if (lists.slots.size() / lists.n_lists > n_tokens) {
    return InvalidArgument("%s_len %zu > %s %u * n_tokens %u", lists.name,
                           lists.slots.size(), lists.n_name, lists.n_lists,
                           n_tokens);
  }
  const size_t count = lists.slots.size() / lists.n_lists;
  *out = {&view,
          n_tokens,
          {const_cast<int32_t*>(lists.slots.data()),  // is only read
           lists.n_lists, static_cast<uint32_t>(count)}};
  return Status();
}

Status WorkspaceSize(CheckedSize bytes, size_t* out_bytes) {
  if (!bytes.ok())
    return InvalidArgument("workspace: more bytes than size_t holds");
  *out_bytes = bytes.value();
  return Status();
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
  const WorkspaceNeeds needs =
      plan.WorkspaceFor(KVEVICT_OPERATION_SCORE_WINDOW, n_tokens);
  KV_RETURN_IF_ERROR(
      CheckWorkspace(context, workspace, workspace_bytes, needs));

  const SignalInfo& signal = InfoOf(Signal::kWindowAttention);
  const ScoreWorkspace layout = plan.LayOutScore(n_tokens);
  const std::span<uint8_t> parts{static_cast<uint8_t*>(workspace),
                                 std::min(workspace_bytes, needs.best.value())};
  ScoreJob job;
  job.view = &view;
  job.n_tokens = n_tokens;
  job.queries.rows.base = reinterpret_cast<const uint8_t*>(queries.data);
  job.queries.rows.row_stride = queries.token_stride_bytes;
  job.queries.rows.element_stride = ElementStride(queries);
  job.queries.rows.dtype = static_cast<DType>(queries.dtype);
  job.queries.head_stride = queries.head_stride_bytes;
  if (row_lse != nullptr) {
    job.queries.lse = reinterpret_cast<const float*>(row_lse->data);
    job.queries.lse_row_stride = row_lse->token_stride_bytes;
    job.queries.lse_head_stride = row_lse->head_stride_bytes;
  }
  job.rows = plan.ShapingOf(signal).n_terms > 1
                 ? reinterpret_cast<float*>(parts.data() + layout.rows)
                 : scores.data();
  return ScoreAndShape(plan, signal, stream, n_tokens, Jobs<ScoreJob>(job),
                       Jobs<ShapeJob>({n_tokens, job.rows, scores.data()}),
                       parts.subspan(layout.scratch));
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
  const WorkspaceNeeds needs =
      plan.WorkspaceFor(KVEVICT_OPERATION_SELECT, n_tokens);
  KV_RETURN_IF_ERROR(
      CheckWorkspace(context, workspace, workspace_bytes, needs));
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
  const KeepLists lists{keep.data(), n_lists, n_keep};
  if (n_keep == n_tokens) {  // positions are slots here
    KV_RETURN_IF_ERROR(context.backend().map_positions(
        context, stream,
        {Jobs<MapJob>({{}, {nullptr, n_lists, n_keep}, keep.data()})}));
    *out_n_keep = n_keep;
    return Status();
  }
  kvevict_resolved_policy resolved;
  KV_RETURN_IF_ERROR(ResolvePolicy(policy, n_tokens, &resolved));
  const Forced forced{resolved.n_sink, ForcedRecentTokens(policy, resolved),
                      protected_slots};
  KV_RETURN_IF_ERROR(CheckForced(forced, n_tokens, n_keep));

  const SelectWorkspace layout = plan.LayOutSelect(n_tokens);
  const std::span<uint8_t> parts{static_cast<uint8_t*>(workspace),
                                 needs.best.value()};
  SelectJob job;
  job.n_tokens = n_tokens;
  job.keys = reinterpret_cast<uint32_t*>(parts.data() + layout.keys);
  job.keep = lists;
  if (plan.signal().Ranks()) job.scores = scores.data();
  if (plan.signal().Ranks() && policy.scope != KVEVICT_SCOPE_KV_HEAD) {
    float* const reduced = reinterpret_cast<float*>(job.keys);
    KV_RETURN_IF_ERROR(context.backend().reduce(
        context, stream,
        {Jobs<ReduceJob>({n_tokens, scores.data(), reduced}),
         g.n_kv_heads * (model ? g.n_layers : 1), policy.scope_reduce}));
    job.scores = reduced;
  }
  KV_RETURN_IF_ERROR(context.backend().select(
      context, stream,
      {Jobs<SelectJob>(job), plan.n_lists(), TieOf(policy), forced,
       parts.subspan(layout.scratch)}));
  *out_n_keep = n_keep;
  return Status();
}

// ---- compact and reorder ----

Status Compact(const Context& context, const kvevict_view& view,
               uint32_t n_tokens, std::span<const int32_t> keep,
               uint32_t n_keep_lists, void* workspace, size_t workspace_bytes,
               Stream stream) {
  MoveJob job;
  KV_RETURN_IF_ERROR(MakeMoveJob(context, view, n_tokens,
                                 {"keep", "n_keep_lists", keep, n_keep_lists},
                                 &job));
  const size_t n_keep = job.keep.count;
  for (uint32_t list = 0; context.backend().on_host && list < n_keep_lists;
       ++list) {
    KV_RETURN_IF_ERROR(CheckAscending(
        "keep", keep.subspan(list * n_keep, n_keep), list * n_keep, n_tokens));
  }
  const size_t useful_bytes =
      context.backend().compact_view_scratch_bytes(context, job).value();
  std::span<uint8_t> scratch;
  if (workspace_bytes >= useful_bytes) {
    KV_RETURN_IF_ERROR(CheckMemory("workspace", context, workspace,
                                   workspace_bytes, useful_bytes));
    scratch = {static_cast<uint8_t*>(workspace), useful_bytes};
  }
  return context.backend().compact(context, stream,
                                   {Jobs<MoveJob>(job), scratch});
}

Status CompactWorkspaceBytes(const Context& context, const kvevict_view& view,
                             uint32_t n_keep, size_t* out_bytes) {
  KV_RETURN_IF_ERROR(CheckMovedView(context, view, "n_keep", n_keep));
  return WorkspaceSize(context.backend().compact_view_scratch_bytes(
                           context, {&view, n_keep, {nullptr, 1, n_keep}}),
                       out_bytes);
}

Status Reorder(const Context& context, const kvevict_view& view,
               uint32_t n_tokens, std::span<const int32_t> slots,
               uint32_t n_slot_lists, void* workspace, size_t workspace_bytes,
               Stream stream) {
  const Backend& backend = context.backend();
  MoveJob job;
  KV_RETURN_IF_ERROR(MakeMoveJob(context, view, n_tokens,
                                 {"slots", "n_slot_lists", slots, n_slot_lists},
                                 &job));
  for (size_t i = 0; backend.on_host && i < slots.size(); ++i) {
    if (slots[i] >= 0 && slots[i] < int64_t{n_tokens}) continue;
    return InvalidArgument("slots[%zu] %d is not in [0, n_tokens %u)", i,
                           slots[i], n_tokens);
  }
  size_t needed_bytes = 0;
  KV_RETURN_IF_ERROR(WorkspaceSize(backend.reorder_scratch_bytes(context, job),
                                   &needed_bytes));
  KV_RETURN_IF_ERROR(CheckMemory("workspace", context, workspace,
                                 workspace_bytes, needed_bytes));
  return backend.reorder(
      context, stream, {job, {static_cast<uint8_t*>(workspace), needed_bytes}});
}

Status ReorderWorkspaceBytes(const Context& context, const kvevict_view& view,
                             uint32_t n_slots, uint32_t n_slot_lists,
                             size_t* out_bytes) {
  KV_RETURN_IF_ERROR(CheckMovedView(context, view, "n_slots", n_slots));
  KV_RETURN_IF_ERROR(CheckListCount("n_slot_lists", n_slot_lists, view));
  return WorkspaceSize(
      context.backend().reorder_scratch_bytes(
          context, {&view, n_slots, {nullptr, n_slot_lists, n_slots}}),
      out_bytes);
}

}  // namespace kvevict
