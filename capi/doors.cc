#include "core/doors/doors.h"

#include "capi/guard.h"
#include "kvevict/attention.h"
#include "kvevict/edit.h"
#include "kvevict/experimental.h"

using namespace kvevict;        // NOLINT: entry points live outside namespaces
using namespace kvevict::capi;  // NOLINT

namespace {

Status CheckJobs(const char* name, const void* jobs, size_t jobs_len) {
  KV_RETURN_IF_ERROR(CheckArray(name, jobs, jobs_len));
  if (jobs_len <= kMaxJobs) return Status();
  return InvalidArgument("%s_len %zu > %zu", name, jobs_len, kMaxJobs);
}

// The jobs of a call, and copies of what they point to.
struct CopiedJobs {
  ScoreRequest jobs[kMaxJobs];
  size_t n = 0;

  std::span<const ScoreRequest> all() const { return {jobs, n}; }
};

Status CopyJob(const Plan& plan, const kvevict_score_job* in,
               ScoreRequest* out) {
  kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
  KV_RETURN_IF_ERROR(CopyIn("job", in, &job));
  KV_RETURN_IF_ERROR(FindLayer(plan, job.layer, &out->inputs.layer));
  if (job.inputs != nullptr)
    KV_RETURN_IF_ERROR(CopyIn(job.inputs, &out->inputs));
  out->view = KVEVICT_VIEW_INIT;
  if (job.view != nullptr || plan.ReadsRows() ||
      IsScoredByQueries(plan, out->inputs)) {
    KV_RETURN_IF_ERROR(CopyIn("view", job.view, &out->view));
    FillFrom(plan.layer(out->inputs.layer).geometry, &out->view);
  }
  KV_RETURN_IF_ERROR(CheckArray("scores", job.scores, job.scores_len));
  out->n_tokens = job.n_tokens;
  out->n_seen = job.n_seen == 0 ? job.n_tokens : job.n_seen;
  out->token_counts = job.token_counts;
  out->scores = {job.scores, job.scores_len};
  return Status();
}

Status CopyJobs(const Plan& plan, const kvevict_score_job* jobs,
                size_t jobs_len, CopiedJobs* out) {
  KV_RETURN_IF_ERROR(CheckJobs("jobs", jobs, jobs_len));
  out->n = jobs_len;
  return ForEachStruct("jobs", jobs, jobs_len,
                       [&](size_t i, const kvevict_score_job* job) {
                         return CopyJob(plan, job, &out->jobs[i]);
                       });
}

// The moves of a call, and copies of what they point to.
struct CopiedMoves {
  Move moves[kMaxJobs];
  size_t n = 0;

  std::span<const Move> all() const { return {moves, n}; }
};

// The lists of a move without any: all slots are kept, and `slots` is NULL.
kvevict_keep_lists AllSlots(const kvevict_move& move,
                            const kvevict_view& view) {
  kvevict_keep_lists keep = KVEVICT_KEEP_LISTS_INIT;
  keep.count = move.n_tokens;
  keep.n_lists = move.token_counts == nullptr ? 1 : view.n_kv_heads;
  keep.counts = const_cast<uint32_t*>(move.token_counts);  // only read
  return keep;
}

Status CopyMove(const kvevict_move* in, Move* out) {
  kvevict_move move = KVEVICT_MOVE_INIT;
  KV_RETURN_IF_ERROR(CopyIn("move", in, &move));
  out->n_tokens = move.n_tokens;
  out->token_counts = move.token_counts;
  const bool all_merge = move.merge_fraction == 0.0;
  out->merge = {move.merge, move.merge_threshold,
                all_merge ? 1.0 : move.merge_fraction};
  out->view = KVEVICT_VIEW_INIT;
  out->keep = KVEVICT_KEEP_LISTS_INIT;
  KV_RETURN_IF_ERROR(CopyIn("view", move.view, &out->view));
  out->keeps_all = move.keep == nullptr && move.destination != nullptr;
  if (out->keeps_all) {
    out->keep = AllSlots(move, out->view);
  } else {
    KV_RETURN_IF_ERROR(CopyIn("keep", move.keep, &out->keep));
  }
  out->first_slot = move.first_slot;
  out->has_destination = move.destination != nullptr;
  if (!out->has_destination) return Status();
  out->destination = KVEVICT_VIEW_INIT;
  return CopyIn("destination", move.destination, &out->destination);
}

Status CopyMoves(const kvevict_move* moves, size_t moves_len,
                 CopiedMoves* out) {
  KV_RETURN_IF_ERROR(CheckJobs("moves", moves, moves_len));
  out->n = moves_len;
  return ForEachStruct("moves", moves, moves_len,
                       [&](size_t i, const kvevict_move* move) {
                         return CopyMove(move, &out->moves[i]);
                       });
}

// The rotations of a call, and copies of what they point to.
struct CopiedRotations {
  RotateRequest rotations[kMaxJobs];
  size_t n = 0;

  std::span<const RotateRequest> all() const { return {rotations, n}; }
};

Status CopyRotation(const Plan& plan, const kvevict_rotation* in,
                    RotateRequest* out) {
  kvevict_rotation rotation = KVEVICT_ROTATION_INIT;
  KV_RETURN_IF_ERROR(CopyIn("rotation", in, &rotation));
  KV_RETURN_IF_ERROR(FindLayer(plan, rotation.layer, &out->layer));
  out->view = KVEVICT_VIEW_INIT;
  KV_RETURN_IF_ERROR(CopyIn("view", rotation.view, &out->view));
  FillFrom(plan.layer(out->layer).geometry, &out->view);
  KV_RETURN_IF_ERROR(
      CheckArray("offsets", rotation.offsets, rotation.offsets_len));
  out->n_tokens = rotation.n_tokens;
  out->token_counts = rotation.token_counts;
  out->n_lists = rotation.n_lists;
  out->offsets = {rotation.offsets, rotation.offsets_len};
  return Status();
}

// The jobs of kvevict_attend(), and copies of what they point to.
struct CopiedAttention {
  AttendJob jobs[kMaxJobs];
  size_t n = 0;

  std::span<AttendJob> all() { return {jobs, n}; }
};

Status CopyPlane(const char* name, const kvevict_plane* in,
                 kvevict_plane* out) {
  KV_RETURN_IF_ERROR(CheckNotNull(name, in));
  *out = *in;
  return Status();
}

Status CopyAttention(const kvevict_attention_job* in, AttendJob* out) {
  kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
  KV_RETURN_IF_ERROR(CopyIn("job", in, &job));
  out->view = KVEVICT_VIEW_INIT;
  KV_RETURN_IF_ERROR(CopyIn("view", job.view, &out->view));
  KV_RETURN_IF_ERROR(CopyPlane("queries", job.queries, &out->queries));
  KV_RETURN_IF_ERROR(CopyPlane("out", job.out, &out->out));
  out->row_lse = out->attention_sums = KVEVICT_PLANE_INIT;
  if (job.row_lse != nullptr) out->row_lse = *job.row_lse;
  if (job.attention_sums != nullptr) {
    out->attention_sums = *job.attention_sums;
  }
  const size_t n_sinks = job.sink_logits == nullptr ? 0 : job.n_q_heads;
  if (job.sink_logits_len != n_sinks) {
    return InvalidArgument("sink_logits_len %zu is not %zu%s",
                           job.sink_logits_len, n_sinks,
                           n_sinks == 0 ? ", sink_logits is NULL" : "");
  }
  out->tokens = {job.n_tokens, job.token_counts};
  out->sink_logits = job.sink_logits;
  out->n_q_heads = job.n_q_heads;
  out->n_queries = job.n_queries;
  out->v_head_dim = job.v_head_dim;
  out->window = job.window;
  out->non_causal = job.non_causal;
  out->n_sum_heads = job.n_sum_heads;
  out->softmax_scale = job.softmax_scale;
  out->logit_softcap = job.logit_softcap;
  return Status();
}

Status CopyAttention(const kvevict_attention_job* jobs, size_t jobs_len,
                     CopiedAttention* out) {
  KV_RETURN_IF_ERROR(CheckJobs("jobs", jobs, jobs_len));
  out->n = jobs_len;
  return ForEachStruct("jobs", jobs, jobs_len,
                       [&](size_t i, const kvevict_attention_job* job) {
                         return CopyAttention(job, &out->jobs[i]);
                       });
}

}  // namespace

extern "C" {

// ---- score ----

kvevict_status kvevict_score(const kvevict_plan* plan,
                             const kvevict_score_job* jobs, size_t jobs_len,
                             void* workspace, size_t workspace_bytes,
                             kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    CopiedJobs copied;
    KV_RETURN_IF_ERROR(CopyJobs(Core(plan), jobs, jobs_len, &copied));
    return Score(Core(plan), copied.all(),
                 {workspace, workspace_bytes, stream});
  });
}

// ---- select ----

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
    TokenRanges ranges;
    KV_RETURN_IF_ERROR(CopyIn(o.ranges, o.ranges_len, &ranges));
    return Select(Core(context), o, ranges, k,
                  {workspace, workspace_bytes, stream});
  });
}

kvevict_status kvevict_select_workspace(const kvevict_context* context,
                                        uint32_t n_tokens, uint32_t n_lists,
                                        kvevict_workspace* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    WorkspaceNeeds needs;
    KV_RETURN_IF_ERROR(
        SelectWorkspace(Core(context), n_tokens, n_lists, &needs));
    return CopyOut(Core(context), needs, out);
  });
}

kvevict_status kvevict_plan_selection(const kvevict_plan* plan, uint32_t layer,
                                      uint32_t n_tokens, uint32_t n_seen,
                                      kvevict_select_options* options,
                                      kvevict_keep_lists* keep) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckOut("options", options));
    KV_RETURN_IF_ERROR(CheckOut("keep", keep));
    uint32_t place = 0;
    KV_RETURN_IF_ERROR(FindLayer(Core(plan), layer, &place));
    const kvevict_select_options plain = KVEVICT_SELECT_OPTIONS_INIT;
    kvevict_select_options o = plain;
    const kvevict_keep_lists empty = KVEVICT_KEEP_LISTS_INIT;
    kvevict_keep_lists k = empty;
    KV_RETURN_IF_ERROR(
        PlanSelection(Core(plan), place, n_tokens, n_seen, &o, &k));
    KV_RETURN_IF_ERROR(CheckRoom("keep", k, empty, *keep));
    KV_RETURN_IF_ERROR(CopyOutWhole("options", o, plain, options));
    CopyOut(k, keep);
    return Status();
  });
}

// ---- budget for mass ----

kvevict_status kvevict_budget_for_mass(const kvevict_context* context,
                                       const kvevict_layer_scores* layers,
                                       size_t layers_len,
                                       const kvevict_mass_options* options,
                                       uint32_t* budgets,
                                       size_t budgets_len) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    kvevict_mass_options o = KVEVICT_MASS_OPTIONS_INIT;
    KV_RETURN_IF_ERROR(CopyIn("options", options, &o));
    KV_RETURN_IF_ERROR(CheckArray("layers", layers, layers_len));
    KV_RETURN_IF_ERROR(CheckArray("budgets", budgets, budgets_len));
    Array<LayerScores> copied(Core(context));
    KV_RETURN_IF_ERROR(
        copied.Allocate("layers of scores", CheckedSize(layers_len)));
    KV_RETURN_IF_ERROR(ForEachStruct(
        "layers", layers, layers_len,
        [&](size_t i, const kvevict_layer_scores* in) {
          kvevict_layer_scores layer = KVEVICT_LAYER_SCORES_INIT;
          KV_RETURN_IF_ERROR(CopyIn("layer", in, &layer));
          if (layer.reserved != 0) {
            return InvalidArgument("reserved %u is not 0", layer.reserved);
          }
          copied[i] = {
              layer.n_rows, layer.n_tokens, {layer.scores, layer.scores_len}};
          return CheckArray("scores", layer.scores, layer.scores_len);
        }));
    return BudgetForMass(Core(context), {copied.data(), copied.size()}, o,
                         {budgets, budgets_len});
  });
}

// ---- compact, reorder ----

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

kvevict_status kvevict_compact_workspace(const kvevict_context* context,
                                         const kvevict_move* moves,
                                         size_t moves_len,
                                         kvevict_workspace* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    CopiedMoves copied;
    KV_RETURN_IF_ERROR(CopyMoves(moves, moves_len, &copied));
    WorkspaceNeeds needs;
    KV_RETURN_IF_ERROR(CompactWorkspace(Core(context), copied.all(), &needs));
    return CopyOut(Core(context), needs, out);
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

kvevict_status kvevict_reorder_workspace(const kvevict_context* context,
                                         const kvevict_move* moves,
                                         size_t moves_len,
                                         kvevict_workspace* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    CopiedMoves copied;
    KV_RETURN_IF_ERROR(CopyMoves(moves, moves_len, &copied));
    WorkspaceNeeds needs;
    KV_RETURN_IF_ERROR(ReorderWorkspace(Core(context), copied.all(), &needs));
    return CopyOut(Core(context), needs, out);
  });
}

// ---- rotate ----

kvevict_status kvevict_rotate(const kvevict_plan* plan,
                              const kvevict_rotation* rotations,
                              size_t rotations_len,
                              kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("plan", plan));
    KV_RETURN_IF_ERROR(CheckJobs("rotations", rotations, rotations_len));
    CopiedRotations copied;
    copied.n = rotations_len;
    KV_RETURN_IF_ERROR(ForEachStruct(
        "rotations", rotations, rotations_len,
        [&](size_t i, const kvevict_rotation* rotation) {
          return CopyRotation(Core(plan), rotation, &copied.rotations[i]);
        }));
    return Rotate(Core(plan), copied.all(), stream);
  });
}

// ---- attend ----

kvevict_status kvevict_attend(const kvevict_context* context,
                              const kvevict_attention_job* jobs,
                              size_t jobs_len, void* workspace,
                              size_t workspace_bytes,
                              kvevict_stream stream) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    CopiedAttention copied;
    KV_RETURN_IF_ERROR(CopyAttention(jobs, jobs_len, &copied));
    return Attend(Core(context), copied.all(),
                  {workspace, workspace_bytes, stream});
  });
}

kvevict_status kvevict_attend_workspace(const kvevict_context* context,
                                        const kvevict_attention_job* jobs,
                                        size_t jobs_len,
                                        kvevict_workspace* out) noexcept {
  return Guard([&] {
    KV_RETURN_IF_ERROR(CheckNotNull("context", context));
    KV_RETURN_IF_ERROR(CheckOut("out", out));
    CopiedAttention copied;
    KV_RETURN_IF_ERROR(CopyAttention(jobs, jobs_len, &copied));
    WorkspaceNeeds needs;
    KV_RETURN_IF_ERROR(AttendWorkspace(Core(context), copied.all(), &needs));
    return CopyOut(Core(context), needs, out);
  });
}

}  // extern "C"
