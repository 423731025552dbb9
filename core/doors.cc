#include "core/doors.h"

#include <algorithm>

#include "core/budgets/budgets.h"
#include "core/checked_math.h"
#include "core/overlap.h"
#include "core/policy.h"
#include "core/score.h"
#include "core/view.h"

namespace kvevict {
namespace {

constexpr size_t kPartAlignment = 256;

Status CheckReserved(const char* name, uint32_t reserved) {
  if (reserved == 0) return Status();
  return InvalidArgument("%s.reserved %u is not 0", name, reserved);
}

Status CheckTokenCount(uint32_t n_tokens, uint32_t least, uint32_t most,
                       const char* most_name) {
  if (n_tokens >= least && n_tokens <= most) return Status();
  return InvalidArgument("n_tokens %u is not in [%u, %s %u]", n_tokens, least,
                         most_name, most);
}

// What the host can read of counts per list.
ListCounts CountsOf(uint32_t most, const uint32_t* each) {
  return {most, each, 1};
}

// Counts on the device are the caller's word.
Status CheckCounts(const Context& context, const char* name,
                   const ListCounts& counts, uint32_t n_lists) {
  if (!context.backend().on_host || counts.each == nullptr) return Status();
  for (uint32_t list = 0; list < n_lists; ++list) {
    if (counts.Of(list) <= counts.most) continue;
    return InvalidArgument("%s[%u] %u > %u", name, list, counts.Of(list),
                           counts.most);
  }
  return Status();
}

Status WorkspaceSize(CheckedSize bytes, size_t* out_bytes) {
  if (!bytes.ok())
    return InvalidArgument("workspace: more bytes than size_t holds");
  *out_bytes = bytes.value();
  return Status();
}

// ---- Keep lists ----

// As operations have them, whose strides are of 32 bits.
Status CheckKeepLists(const kvevict_keep_lists& keep, KeepLists* out) {
  KV_RETURN_IF_ERROR(CheckReserved("keep", keep.reserved));
  const uint64_t stride = keep.list_stride == 0 ? keep.count : keep.list_stride;
  if (stride < keep.count) {
    return InvalidArgument("keep.list_stride %llu < count %u",
                           static_cast<unsigned long long>(stride), keep.count);
  }
  if (keep.n_lists < 1) return InvalidArgument("keep.n_lists 0 < 1");
  const CheckedSize end = CheckedSize(keep.n_lists - 1) * CheckedSize(stride) +
                          CheckedSize(keep.count);
  if (!end.ok() || end.value() > keep.slots_len) {
    return InvalidArgument(
        "keep.slots_len %zu < %llu of %u lists of up to %u slots, %llu apart",
        keep.slots_len, static_cast<unsigned long long>(end.value()),
        keep.n_lists, keep.count, static_cast<unsigned long long>(stride));
  }
  if (stride > UINT32_MAX) {
    return InvalidArgument("keep.list_stride %llu > %u",
                           static_cast<unsigned long long>(stride), UINT32_MAX);
  }
  if (keep.count > 0 && keep.slots == nullptr) {
    return InvalidArgument("keep.slots is NULL, but count is %u", keep.count);
  }
  *out = {keep.slots, keep.n_lists, CountsOf(keep.count, keep.counts), stride};
  return Status();
}

// The message begins with the place among the slots.
Status CheckAscending(std::span<const int32_t> slots, uint32_t n_tokens) {
  int64_t least = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < least || slots[i] >= int64_t{n_tokens}) {
      return InvalidArgument(
          "[%zu] %d: ascending slots in [%lld, n_tokens %u) are wanted", i,
          slots[i], static_cast<long long>(least), n_tokens);
    }
    least = int64_t{slots[i]} + 1;
  }
  return Status();
}

// The same of slots in any order.
Status CheckHeld(std::span<const int32_t> slots, uint32_t n_tokens) {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= 0 && slots[i] < int64_t{n_tokens}) continue;
    return InvalidArgument("[%zu] %d is not in [0, n_tokens %u)", i, slots[i],
                           n_tokens);
  }
  return Status();
}

}  // namespace

// ---- score ----

namespace {

// The inputs that the policy's signal needs, and the cache.
Status CheckScoreInputs(const Plan& plan, const kvevict_score_inputs& inputs,
                        const kvevict_view& view) {
  const kvevict_geometry& g = plan.geometry();
  const SignalInfo& signal = plan.signal();
  const bool on_host = plan.context().backend().on_host;
  KV_RETURN_IF_ERROR(CheckReserved("inputs", inputs.reserved));
  if (inputs.layer >= g.n_layers) {
    return InvalidArgument("layer %u >= n_layers %u", inputs.layer, g.n_layers);
  }
  const uint32_t window = signal.Needs(kQueries) ? plan.policy().obs_window : 1;
  KV_RETURN_IF_ERROR(
      CheckTokenCount(inputs.n_tokens, window, g.max_tokens, "max_tokens"));
  const ListCounts tokens = CountsOf(inputs.n_tokens, inputs.token_counts);
  KV_RETURN_IF_ERROR(
      CheckCounts(plan.context(), "token_counts", tokens, g.n_kv_heads));
  for (uint32_t h = 0; on_host && tokens.each != nullptr && h < g.n_kv_heads;
       ++h) {
    if (tokens.Of(h) >= window) continue;
    return InvalidArgument("token_counts[%u] %u < %u", h, tokens.Of(h), window);
  }
  if (signal.Needs(kKeys)) {
    KV_RETURN_IF_ERROR(plan.CheckCanScore());
    Status status = ValidateView(view, tokens, on_host);
    if (status.ok()) status = MatchGeometry(view, g);
    if (status.ok() && !IsPresent(view.k)) {
      status = InvalidArgument("k.data is 0: no keys to score");
    }
    if (!status.ok()) return Prefixed(status, "view: ");
  }
  if (!signal.Needs(kQueries)) return Status();
  if (inputs.queries == nullptr) {
    return InvalidArgument("queries is NULL, but the policy scores by %s",
                           signal.text);
  }
  KV_RETURN_IF_ERROR(ValidateRows("queries", *inputs.queries, g.q_dtype,
                                  g.k_head_dim, g.n_q_heads, window));
  if (inputs.row_lse == nullptr) return Status();
  return ValidateRows("row_lse", *inputs.row_lse, KVEVICT_DTYPE_F32, 1,
                      g.n_q_heads, window);
}

QueryRows QueriesOf(const kvevict_plane& queries,
                    const kvevict_plane* row_lse) {
  QueryRows rows;
  rows.rows.base = reinterpret_cast<const uint8_t*>(queries.data);
  rows.rows.row_stride = queries.token_stride_bytes;
  rows.rows.element_stride = ElementStride(queries);
  rows.rows.dtype = static_cast<DType>(queries.dtype);
  rows.head_stride = queries.head_stride_bytes;
  if (row_lse != nullptr) {
    rows.lse = reinterpret_cast<const float*>(row_lse->data);
    rows.lse_row_stride = row_lse->token_stride_bytes;
    rows.lse_head_stride = row_lse->head_stride_bytes;
  }
  return rows;
}

}  // namespace

Status Score(const Plan& plan, const kvevict_score_inputs& inputs,
             const kvevict_view& view, std::span<float> scores,
             const CallMemory& memory) {
  const kvevict_geometry& g = plan.geometry();
  const SignalInfo& signal = plan.signal();
  if (!signal.Ranks() || signal.Needs(kScores)) {
    return InvalidArgument("the policy ranks tokens by %s: nothing to score",
                           signal.Ranks() ? signal.text : "their place");
  }
  KV_RETURN_IF_ERROR(CheckScoreInputs(plan, inputs, view));
  if (scores.size() != uint64_t{g.n_kv_heads} * inputs.n_tokens) {
    return InvalidArgument("scores_len %zu is not n_kv_heads %u * n_tokens %u",
                           scores.size(), g.n_kv_heads, inputs.n_tokens);
  }
  const WorkspaceNeeds needs =
      plan.WorkspaceFor(KVEVICT_OPERATION_SCORE, inputs.n_tokens);
  KV_RETURN_IF_ERROR(CheckWorkspace(plan.context(), memory.workspace,
                                    memory.workspace_bytes, needs));
  const ScoreWorkspace layout = plan.LayOutScore(inputs.n_tokens);
  const std::span<uint8_t> parts{
      static_cast<uint8_t*>(memory.workspace),
      std::min(memory.workspace_bytes, needs.best.value())};
  ScoreJob job;
  job.layer = inputs.layer;
  job.view = &view;
  job.tokens = CountsOf(inputs.n_tokens, inputs.token_counts);
  if (signal.Needs(kQueries)) {
    job.queries = QueriesOf(*inputs.queries, inputs.row_lse);
  }
  job.rows = plan.ShapingOf(signal).n_terms > 1
                 ? reinterpret_cast<float*>(parts.data() + layout.rows)
                 : scores.data();
  return ScoreAndShape(plan, signal, memory.stream, inputs.n_tokens,
                       Jobs<ScoreJob>(job),
                       Jobs<ShapeJob>({job.tokens, job.rows, scores.data()}),
                       parts.subspan(layout.scratch));
}

// ---- select ----

namespace {

// Keys of all lists, then the operation's own.
CheckedSize KeysBytes(uint32_t n_tokens, uint32_t n_lists) {
  return (CheckedSize(n_tokens) * CheckedSize(n_lists) *
          CheckedSize(sizeof(uint32_t)))
      .AlignUp(kPartAlignment);
}

CheckedSize SelectBytes(const Context& context, uint32_t n_tokens,
                        uint32_t n_lists) {
  return KeysBytes(n_tokens, n_lists) +
         context.backend().select_scratch_bytes(context, n_tokens, n_lists);
}

Status CheckSelectEnums(const kvevict_select_options& o) {
  if (o.reduce != KVEVICT_REDUCE_MEAN && o.reduce != KVEVICT_REDUCE_MAX &&
      o.reduce != KVEVICT_REDUCE_SUM) {
    return InvalidArgument("reduce %d is no reduction",
                           static_cast<int>(o.reduce));
  }
  if (o.tie == KVEVICT_TIE_LOWER_POSITION ||
      o.tie == KVEVICT_TIE_HIGHER_POSITION) {
    return Status();
  }
  return InvalidArgument("tie %d is no tie rule", static_cast<int>(o.tie));
}

// Rows of scores per list.
Status CheckScores(const kvevict_select_options& o, uint32_t n_lists,
                   uint32_t* out_rows_per_list) {
  const uint32_t n_rows = o.n_rows == 0 ? n_lists : o.n_rows;
  if (n_rows % n_lists != 0) {
    return InvalidArgument("n_rows %u is not a multiple of keep.n_lists %u",
                           n_rows, n_lists);
  }
  *out_rows_per_list = n_rows / n_lists;
  if (o.token_counts != nullptr && n_rows != n_lists) {
    return InvalidArgument(
        "token_counts with n_rows %u of %u lists: rows that are reduced must "
        "be of one length",
        n_rows, n_lists);
  }
  const uint64_t wanted =
      o.scores == nullptr ? 0 : uint64_t{n_rows} * o.n_tokens;
  if (o.scores_len == wanted) return Status();
  return InvalidArgument("scores_len %zu is not n_rows %u * n_tokens %u",
                         o.scores_len, o.scores == nullptr ? 0 : n_rows,
                         o.n_tokens);
}

// What must stay has to fit every list that loses something.
Status CheckForced(const kvevict_select_options& o, const ListCounts& tokens,
                   const KeepLists& keep, bool on_host) {
  const std::span<const int32_t> protect{o.protected_slots,
                                         o.protected_slots_len};
  const uint32_t n_known = on_host                          ? keep.n_lists
                           : tokens.each || keep.count.each ? 0
                                                            : 1;
  for (uint32_t list = 0; list < n_known; ++list) {
    const uint32_t n_tokens = tokens.Of(list);
    const uint32_t n_keep = keep.count.Of(list);
    if (n_keep > n_tokens) {
      return InvalidArgument("keep.count %u > %u tokens of list %u", n_keep,
                             n_tokens, list);
    }
    if (n_keep == n_tokens) continue;
    const uint64_t n_protected =
        std::count_if(protect.begin(), protect.end(), [&](int32_t slot) {
          return slot >= int64_t{o.n_sink} &&
                 slot < int64_t{n_tokens} - o.n_recent;
        });
    if (uint64_t{o.n_sink} + o.n_recent + n_protected <= n_keep) continue;
    return InvalidArgument(
        "budget %u of list %u < sink %u + recent %u + %llu protected slots",
        n_keep, list, o.n_sink, o.n_recent,
        static_cast<unsigned long long>(n_protected));
  }
  return Status();
}

}  // namespace

Status SelectWorkspaceBytes(const Context& context, uint32_t n_tokens,
                            uint32_t n_lists, size_t* out_bytes) {
  KV_RETURN_IF_ERROR(CheckTokenCount(n_tokens, 0, INT32_MAX, "most"));
  return WorkspaceSize(SelectBytes(context, n_tokens, n_lists), out_bytes);
}

Status Select(const Context& context, const kvevict_select_options& o,
              const kvevict_keep_lists& keep, const CallMemory& memory) {
  const Backend& backend = context.backend();
  KV_RETURN_IF_ERROR(CheckReserved("options", o.reserved));
  KV_RETURN_IF_ERROR(CheckSelectEnums(o));
  KV_RETURN_IF_ERROR(CheckTokenCount(o.n_tokens, 1, INT32_MAX, "most"));
  KeepLists lists;
  KV_RETURN_IF_ERROR(CheckKeepLists(keep, &lists));
  KV_RETURN_IF_ERROR(
      CheckCounts(context, "keep.counts", lists.count, lists.n_lists));
  const ListCounts tokens = CountsOf(o.n_tokens, o.token_counts);
  KV_RETURN_IF_ERROR(
      CheckCounts(context, "token_counts", tokens, lists.n_lists));
  uint32_t rows_per_list = 1;
  KV_RETURN_IF_ERROR(CheckScores(o, lists.n_lists, &rows_per_list));
  if (Status status = CheckAscending({o.protected_slots, o.protected_slots_len},
                                     o.n_tokens);
      !status.ok()) {
    return Prefixed(status, "protected_slots");
  }
  KV_RETURN_IF_ERROR(CheckForced(o, tokens, lists, backend.on_host));
  const CheckedSize bytes = SelectBytes(context, o.n_tokens, lists.n_lists);
  size_t needed_bytes = 0;
  KV_RETURN_IF_ERROR(WorkspaceSize(bytes, &needed_bytes));
  KV_RETURN_IF_ERROR(CheckMemory("workspace", context, memory.workspace,
                                 memory.workspace_bytes, needed_bytes));

  auto* const keys = static_cast<uint8_t*>(memory.workspace);
  const size_t scratch = KeysBytes(o.n_tokens, lists.n_lists).value();
  SelectJob job;
  job.tokens = tokens;
  job.scores = o.scores;
  job.keys = reinterpret_cast<uint32_t*>(keys);
  job.keep = lists;
  if (o.scores != nullptr && rows_per_list > 1) {
    float* const reduced = reinterpret_cast<float*>(keys);
    for (uint32_t list = 0; list < lists.n_lists; ++list) {
      const uint64_t row = uint64_t{list} * o.n_tokens;
      KV_RETURN_IF_ERROR(backend.reduce(
          context, memory.stream,
          {Jobs<ReduceJob>(
               {o.n_tokens, o.scores + row * rows_per_list, reduced + row}),
           rows_per_list, o.reduce}));
    }
    job.scores = reduced;
  }
  const Forced forced{
      o.n_sink, o.n_recent, {o.protected_slots, o.protected_slots_len}};
  return backend.select(context, memory.stream,
                        {Jobs<SelectJob>(job),
                         lists.n_lists,
                         o.tie,
                         forced,
                         {keys + scratch, needed_bytes - scratch}});
}

Status PlanSelection(const Plan& plan, uint32_t layer, uint32_t n_tokens,
                     kvevict_select_options* options,
                     kvevict_keep_lists* keep) {
  const kvevict_geometry& g = plan.geometry();
  const kvevict_policy& policy = plan.policy();
  const bool model = plan.scope() == KVEVICT_SCOPE_MODEL;
  if (layer >= g.n_layers) {
    return InvalidArgument("layer %u >= n_layers %u", layer, g.n_layers);
  }
  if (model && layer != 0) {
    return InvalidArgument("layer %u is not 0 with scope model", layer);
  }
  if (plan.IsRagged()) {
    return Unsupported("layer %u: its heads have budgets of their own", layer);
  }
  KV_RETURN_IF_ERROR(CheckTokenCount(n_tokens, 1, g.max_tokens, "max_tokens"));
  uint32_t budgets[kMaxLayers];
  KV_RETURN_IF_ERROR(
      plan.LayerBudgets(n_tokens, std::span(budgets).first(g.n_layers)));
  options->n_tokens = n_tokens;
  options->tie = TieOf(policy);
  options->reduce = policy.scope_reduce;
  // Heads of a policy that ranks nothing are alike, but a list for each is as good.
  keep->n_lists = policy.scope == KVEVICT_SCOPE_KV_HEAD ? g.n_kv_heads : 1;
  keep->count = budgets[layer];
  options->n_rows =
      plan.signal().Ranks() ? g.n_kv_heads * (model ? g.n_layers : 1) : 0;
  if (keep->count == n_tokens) return Status();
  options->n_sink = policy.n_sink;
  options->n_recent = ForcedRecentTokens(policy);
  return Status();
}

// ---- compact, reorder ----

namespace {

// What a call makes of its moves.
struct MoveJobs {
  MoveJob jobs[kMaxMoves];
  LayerCache caches[kMaxMoves];
  size_t n = 0;

  Jobs<MoveJob> all() const { return std::span(jobs).first(n); }
};

// What moves rows of a view of which n_tokens slots will be addressed.
Status MakeMoveJob(const Context& context, const Move& move, uint32_t n_tokens,
                   const char* n_tokens_name, MoveJob* out) {
  if (n_tokens > INT32_MAX) {
    return InvalidArgument("%s %u > %d", n_tokens_name, n_tokens, INT32_MAX);
  }
  Status status = ValidateView(move.view, n_tokens, context.backend().on_host);
  if (!status.ok()) return Prefixed(status, "view: ");
  const kvevict_keep_lists& keep = move.keep;
  if (keep.n_lists != 1 && keep.n_lists != move.view.n_kv_heads) {
    return InvalidArgument("keep.n_lists %u is not 1 or n_kv_heads %u",
                           keep.n_lists, move.view.n_kv_heads);
  }
  if (keep.count > n_tokens) {
    return InvalidArgument("keep.count %u > n_tokens %u", keep.count, n_tokens);
  }
  out->view = &move.view;
  out->n_tokens = n_tokens;
  return Status();
}

// CheckAscending() or CheckHeld().
using CheckList = Status (*)(std::span<const int32_t> slots, uint32_t n_tokens);

Status CheckMove(const Context& context, const Move& move, CheckList check,
                 MoveJob* out) {
  KV_RETURN_IF_ERROR(
      MakeMoveJob(context, move, move.n_tokens, "n_tokens", out));
  KV_RETURN_IF_ERROR(CheckKeepLists(move.keep, &out->keep));
  const KeepLists& keep = out->keep;
  KV_RETURN_IF_ERROR(
      CheckCounts(context, "keep.counts", keep.count, keep.n_lists));
  if (!context.backend().on_host) return Status();
  for (uint32_t list = 0; list < keep.n_lists; ++list) {
    if (Status status =
            check({keep.List(list), keep.count.Of(list)}, move.n_tokens);
        !status.ok()) {
      return Prefixed(status, "keep[%u]", list);
    }
  }
  return Status();
}

Status CheckMoves(const Context& context, std::span<const Move> moves,
                  CheckList check, MoveJobs* out) {
  const bool on_host = context.backend().on_host;
  for (size_t i = 0; i < moves.size(); ++i) {
    if (Status status = CheckMove(context, moves[i], check, &out->jobs[i]);
        !status.ok()) {
      return moves.size() == 1 ? status : Prefixed(status, "moves[%zu]: ", i);
    }
    out->caches[i] = CacheOf(moves[i].view, moves[i].n_tokens, on_host);
  }
  out->n = moves.size();
  if (moves.size() < 2) return Status();
  const std::span<LayerCache> caches = std::span(out->caches).first(out->n);
  FindShared(caches);
  for (uint32_t i = 0; i < out->n; ++i) {
    if (caches[i].owner != i) {
      return InvalidArgument("moves[%u].view is that of moves[%u] again", i,
                             caches[i].owner);
    }
    if (caches[i].shared_companions != 0) {
      return InvalidArgument(
          "moves[%u].view has a companion of an earlier one: it would move "
          "twice",
          i);
    }
  }
  return CheckApart(caches);
}

// Of the largest job: layers take turns.
template <typename Bytes>
CheckedSize LargestOf(Jobs<MoveJob> jobs, const Bytes& bytes_of) {
  CheckedSize largest(0);
  for (const MoveJob& job : jobs) {
    const CheckedSize bytes = bytes_of(job);
    if (!bytes.ok()) return bytes;
    if (bytes.value() > largest.value()) largest = bytes;
  }
  return largest;
}

// Jobs of which only view and count of the lists matter.
Status SizedJobs(const Context& context, std::span<const Move> moves,
                 MoveJobs* out) {
  for (size_t i = 0; i < moves.size(); ++i) {
    const kvevict_keep_lists& keep = moves[i].keep;
    KV_RETURN_IF_ERROR(MakeMoveJob(context, moves[i], keep.count, "keep.count",
                                   &out->jobs[i]));
    out->jobs[i].keep = KeepLists::Packed(nullptr, keep.n_lists, keep.count);
  }
  out->n = moves.size();
  return Status();
}

CheckedSize CompactBytes(const Context& context, Jobs<MoveJob> jobs) {
  return context.backend().compact_scratch_bytes(context, jobs);
}

CheckedSize ReorderBytes(const Context& context, Jobs<MoveJob> jobs) {
  return LargestOf(jobs, [&](const MoveJob& job) {
    return context.backend().reorder_scratch_bytes(context, job);
  });
}

}  // namespace

Status CompactWorkspaceBytes(const Context& context,
                             std::span<const Move> moves, size_t* out_bytes) {
  MoveJobs sized;
  KV_RETURN_IF_ERROR(SizedJobs(context, moves, &sized));
  return WorkspaceSize(CompactBytes(context, sized.all()), out_bytes);
}

Status Compact(const Context& context, std::span<const Move> moves,
               const CallMemory& memory) {
  MoveJobs checked;
  KV_RETURN_IF_ERROR(CheckMoves(context, moves, CheckAscending, &checked));
  const size_t useful_bytes = CompactBytes(context, checked.all()).value();
  std::span<uint8_t> scratch;
  if (memory.workspace_bytes >= useful_bytes) {
    KV_RETURN_IF_ERROR(CheckMemory("workspace", context, memory.workspace,
                                   memory.workspace_bytes, useful_bytes));
    scratch = {static_cast<uint8_t*>(memory.workspace), useful_bytes};
  }
  return context.backend().compact(context, memory.stream,
                                   {checked.all(), scratch});
}

Status ReorderWorkspaceBytes(const Context& context,
                             std::span<const Move> moves, size_t* out_bytes) {
  MoveJobs sized;
  KV_RETURN_IF_ERROR(SizedJobs(context, moves, &sized));
  return WorkspaceSize(ReorderBytes(context, sized.all()), out_bytes);
}

Status Reorder(const Context& context, std::span<const Move> moves,
               const CallMemory& memory) {
  MoveJobs checked;
  KV_RETURN_IF_ERROR(CheckMoves(context, moves, CheckHeld, &checked));
  size_t needed_bytes = 0;
  KV_RETURN_IF_ERROR(
      WorkspaceSize(ReorderBytes(context, checked.all()), &needed_bytes));
  KV_RETURN_IF_ERROR(CheckMemory("workspace", context, memory.workspace,
                                 memory.workspace_bytes, needed_bytes));
  for (const MoveJob& job : checked.all()) {
    KV_RETURN_IF_ERROR(context.backend().reorder(
        context, memory.stream,
        {job, {static_cast<uint8_t*>(memory.workspace), needed_bytes}}));
  }
  return Status();
}

}  // namespace kvevict
