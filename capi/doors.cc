#include "core/doors.h"

#include "capi/guard.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

extern "C" {

kvevict_status kvevict_score_window(const kvevict_plan* plan,
                                    const kvevict_plane* queries,
                                    const kvevict_plane* row_lse,
                                    const kvevict_view* view, uint32_t n_tokens,
                                    float* scores, size_t scores_len,
                                    void* workspace, size_t workspace_bytes,
                                    kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckNotNull("queries", queries));
    kvevict_view v = KVEVICT_VIEW_INIT;
    KV_RETURN_IF_ERROR(CopyIn("view", view, &v));
    KV_RETURN_IF_ERROR(CheckArray("scores", scores, scores_len));
    return ScoreWindow(Core(plan), *queries, row_lse, v, n_tokens,
                       {scores, scores_len}, workspace, workspace_bytes,
                       stream);
  });
}

kvevict_status kvevict_select(const kvevict_plan* plan, uint32_t layer,
                              const float* scores, size_t scores_len,
                              uint32_t n_tokens, const int32_t* protected_slots,
                              size_t protected_slots_len, int32_t* keep,
                              size_t keep_capacity, void* workspace,
                              size_t workspace_bytes, uint32_t* out_n_keep,
                              kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckArray("scores", scores, scores_len));
    KV_RETURN_IF_ERROR(
        CheckArray("protected_slots", protected_slots, protected_slots_len));
    KV_RETURN_IF_ERROR(CheckNotNull("keep", keep));
    KV_RETURN_IF_ERROR(CheckNotNull("out_n_keep", out_n_keep));
    return Select(Core(plan), layer, {scores, scores_len}, n_tokens,
                  {protected_slots, protected_slots_len}, {keep, keep_capacity},
                  workspace, workspace_bytes, out_n_keep, stream);
  });
}

kvevict_status kvevict_compact(const kvevict_context* context,
                               const kvevict_view* view, uint32_t n_tokens,
                               const int32_t* keep, size_t keep_len,
                               uint32_t n_keep_lists, void* workspace,
                               size_t workspace_bytes,
                               kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    kvevict_view v = KVEVICT_VIEW_INIT;
    KV_RETURN_IF_ERROR(CopyIn("view", view, &v));
    KV_RETURN_IF_ERROR(CheckArray("keep", keep, keep_len));
    return Compact(Core(context), v, n_tokens, {keep, keep_len}, n_keep_lists,
                   workspace, workspace_bytes, stream);
  });
}

kvevict_status kvevict_compact_workspace_bytes(const kvevict_context* context,
                                               const kvevict_view* view,
                                               uint32_t n_keep,
                                               size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    kvevict_view v = KVEVICT_VIEW_INIT;
    KV_RETURN_IF_ERROR(CopyIn("view", view, &v));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    return CompactWorkspaceBytes(Core(context), v, n_keep, out_bytes);
  });
}

kvevict_status kvevict_reorder(const kvevict_context* context,
                               const kvevict_view* view, uint32_t n_tokens,
                               const int32_t* slots, size_t slots_len,
                               uint32_t n_slot_lists, void* workspace,
                               size_t workspace_bytes,
                               kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    kvevict_view v = KVEVICT_VIEW_INIT;
    KV_RETURN_IF_ERROR(CopyIn("view", view, &v));
    KV_RETURN_IF_ERROR(CheckArray("slots", slots, slots_len));
    return Reorder(Core(context), v, n_tokens, {slots, slots_len}, n_slot_lists,
                   workspace, workspace_bytes, stream);
  });
}

kvevict_status kvevict_reorder_workspace_bytes(const kvevict_context* context,
                                               const kvevict_view* view,
                                               uint32_t n_slots,
                                               uint32_t n_slot_lists,
                                               size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    kvevict_view v = KVEVICT_VIEW_INIT;
    KV_RETURN_IF_ERROR(CopyIn("view", view, &v));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    return ReorderWorkspaceBytes(Core(context), v, n_slots, n_slot_lists,
                                 out_bytes);
  });
}

}  // extern "C"
