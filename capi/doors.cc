#include "core/doors.h"

#include "capi/guard.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

// The moves of a call and what they point to.
struct CopiedMoves {
  Move moves[kMaxMoves];
  size_t n = 0;

  std::span<const Move> all() const { return {moves, n}; }
};

Status CopyMove(const kvevict_move* in, Move* out) {
  kvevict_move move = KVEVICT_MOVE_INIT;
  KV_RETURN_IF_ERROR(CopyIn("move", in, &move));
  out->n_tokens = move.n_tokens;
  out->view = KVEVICT_VIEW_INIT;
  out->keep = KVEVICT_KEEP_LISTS_INIT;
  KV_RETURN_IF_ERROR(CopyIn("view", move.view, &out->view));
  return CopyIn("keep", move.keep, &out->keep);
}

Status CopyMoves(const kvevict_move* moves, size_t moves_len,
                 CopiedMoves* out) {
  KV_RETURN_IF_ERROR(CheckArray("moves", moves, moves_len));
  if (moves_len > kMaxMoves) {
    return InvalidArgument("moves_len %zu > %zu", moves_len, kMaxMoves);
  }
  out->n = moves_len;
  return ForEachStruct("moves", moves, moves_len,
                       [&](size_t i, const kvevict_move* move) {
                         return CopyMove(move, &out->moves[i]);
                       });
}

}  // namespace

extern "C" {

// ---- score ----

kvevict_status kvevict_score_inputs_init(kvevict_score_inputs* out,
                                         size_t struct_size) noexcept {
  return Init<kvevict_score_inputs>(KVEVICT_SCORE_INPUTS_INIT, out,
                                    struct_size);
}

kvevict_status kvevict_score(const kvevict_plan* plan,
                             const kvevict_score_inputs* inputs, float* scores,
                             size_t scores_len, void* workspace,
                             size_t workspace_bytes,
                             kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    kvevict_score_inputs i = KVEVICT_SCORE_INPUTS_INIT;
    KV_RETURN_IF_ERROR(CopyIn("inputs", inputs, &i));
    kvevict_view v = KVEVICT_VIEW_INIT;
    if (i.view != nullptr || Core(plan).signal().Needs(kKeys)) {
      KV_RETURN_IF_ERROR(CopyIn("view", i.view, &v));
    }
    KV_RETURN_IF_ERROR(CheckArray("scores", scores, scores_len));
    return Score(Core(plan), i, v, {scores, scores_len},
                 {workspace, workspace_bytes, stream});
  });
}

// ---- select ----

kvevict_status kvevict_keep_lists_init(kvevict_keep_lists* out,
                                       size_t struct_size) noexcept {
  return Init<kvevict_keep_lists>(KVEVICT_KEEP_LISTS_INIT, out, struct_size);
}

kvevict_status kvevict_select_options_init(kvevict_select_options* out,
                                           size_t struct_size) noexcept {
  return Init<kvevict_select_options>(KVEVICT_SELECT_OPTIONS_INIT, out,
                                      struct_size);
}

kvevict_status kvevict_select(const kvevict_context* context,
                              const kvevict_select_options* options,
                              const kvevict_keep_lists* keep, void* workspace,
                              size_t workspace_bytes,
                              kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
    KV_RETURN_IF_ERROR(CopyIn("keep", keep, &k));
    KV_RETURN_IF_ERROR(CheckArray("scores", o.scores, o.scores_len));
    KV_RETURN_IF_ERROR(CheckArray("protected_slots", o.protected_slots,
                                  o.protected_slots_len));
    return Select(Core(context), o, k, {workspace, workspace_bytes, stream});
  });
}

kvevict_status kvevict_select_workspace_bytes(const kvevict_context* context,
                                              uint32_t n_tokens,
                                              uint32_t n_lists,
                                              size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    return SelectWorkspaceBytes(Core(context), n_tokens, n_lists, out_bytes);
  });
}

kvevict_status kvevict_plan_selection(const kvevict_plan* plan, uint32_t layer,
                                      uint32_t n_tokens,
                                      kvevict_select_options* options,
                                      kvevict_keep_lists* keep) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckOut("options", options));
    KV_RETURN_IF_ERROR(CheckOut("keep", keep));
    kvevict_select_options o = KVEVICT_SELECT_OPTIONS_INIT;
    kvevict_keep_lists k = KVEVICT_KEEP_LISTS_INIT;
    KV_RETURN_IF_ERROR(PlanSelection(Core(plan), layer, n_tokens, &o, &k));
    CopyOut(o, options);
    CopyOut(k, keep);
    return Status();
  });
}

// ---- compact, reorder ----

kvevict_status kvevict_move_init(kvevict_move* out,
                                 size_t struct_size) noexcept {
  return Init<kvevict_move>(KVEVICT_MOVE_INIT, out, struct_size);
}

kvevict_status kvevict_compact(const kvevict_context* context,
                               const kvevict_move* moves, size_t moves_len,
                               void* workspace, size_t workspace_bytes,
                               kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    CopiedMoves copied;
    KV_RETURN_IF_ERROR(CopyMoves(moves, moves_len, &copied));
    return Compact(Core(context), copied.all(),
                   {workspace, workspace_bytes, stream});
  });
}

kvevict_status kvevict_compact_workspace_bytes(const kvevict_context* context,
                                               const kvevict_move* moves,
                                               size_t moves_len,
                                               size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    CopiedMoves copied;
    KV_RETURN_IF_ERROR(CopyMoves(moves, moves_len, &copied));
    return CompactWorkspaceBytes(Core(context), copied.all(), out_bytes);
  });
}

kvevict_status kvevict_reorder(const kvevict_context* context,
                               const kvevict_move* moves, size_t moves_len,
                               void* workspace, size_t workspace_bytes,
                               kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    CopiedMoves copied;
    KV_RETURN_IF_ERROR(CopyMoves(moves, moves_len, &copied));
    return Reorder(Core(context), copied.all(),
                   {workspace, workspace_bytes, stream});
  });
}

kvevict_status kvevict_reorder_workspace_bytes(const kvevict_context* context,
                                               const kvevict_move* moves,
                                               size_t moves_len,
                                               size_t* out_bytes) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckNotNull("out_bytes", out_bytes));
    CopiedMoves copied;
    KV_RETURN_IF_ERROR(CopyMoves(moves, moves_len, &copied));
    return ReorderWorkspaceBytes(Core(context), copied.all(), out_bytes);
  });
}

}  // extern "C"
