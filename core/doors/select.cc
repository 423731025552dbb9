// kvevict_select(): selects slots without a sequence.
#include <algorithm>

#include "core/budgets/budgets.h"
#include "core/doors/checks.h"
#include "core/doors/doors.h"
#include "core/policy/policy.h"

namespace kvevict {
namespace {

constexpr size_t kPartAlignment = 256;

// Bytes of the keys of all lists. The operation's own scratch follows.
CheckedSize KeysBytes(uint32_t n_tokens, uint32_t n_lists) {
  return (CheckedSize(n_tokens) * CheckedSize(n_lists) *
          CheckedSize(sizeof(uint32_t)))
      .AlignUp(kPartAlignment);
}

CheckedSize SelectBytes(const Context& context, uint32_t n_tokens,
                        uint32_t n_lists) {
  return KeysBytes(n_tokens, n_lists) +
         context.backend().select.scratch(context, {n_tokens, n_lists}).best;
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

// Finds the rows of scores per list.
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
        "token_counts with n_rows %u of %u lists: rows to reduce must have one "
        "length",
        n_rows, n_lists);
  }
  const uint64_t wanted =
      o.scores == nullptr ? 0 : uint64_t{n_rows} * o.n_tokens;
  if (o.scores_len == wanted) return Status();
  return InvalidArgument("scores_len %zu is not n_rows %u * n_tokens %u",
                         o.scores_len, o.scores == nullptr ? 0 : n_rows,
                         o.n_tokens);
}

// Reduces the rows of each list to one; out: [n_lists, n_tokens].
Status ReduceLists(const Context& context, Stream stream,
                   const kvevict_select_options& o, uint32_t rows_per_list,
                   uint32_t n_lists, float* out) {
  constexpr uint32_t kAtOnce = 64;
  ReduceJob jobs[kAtOnce];
  for (uint32_t first = 0; first < n_lists; first += kAtOnce) {
    const uint32_t n = std::min(kAtOnce, n_lists - first);
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t row = uint64_t{first + i} * o.n_tokens;
      jobs[i] = {o.n_tokens, o.scores + row * rows_per_list, out + row};
    }
    KV_RETURN_IF_ERROR(context.backend().reduce(
        context, stream,
        {std::span<const ReduceJob>(jobs).first(n), rows_per_list, o.reduce}));
  }
  return Status();
}

// The slots that must stay have to fit in every list that loses some.
Status CheckForced(const kvevict_select_options& o, SlotBlocks blocks,
                   const ListCounts& tokens, const KeepLists& keep,
                   bool on_host) {
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
    if ((n_tokens - n_keep) % blocks.size != 0) {
      return InvalidArgument(
          "keep.count %u of list %u: %u slots minus %u are not whole blocks of "
          "select_block %u",
          n_keep, list, n_tokens, n_keep, blocks.size);
    }
    ForcedSlots forced(blocks, o.n_sink, o.n_recent, n_tokens);
    for (int32_t slot : protect) forced.Add(slot);
    if (forced.count() <= n_keep) continue;
    return InvalidArgument(
        "keep.count %u of list %u < n_sink %u + n_recent %u + %llu protected "
        "slots%s",
        n_keep, list, o.n_sink, o.n_recent, forced.n_added(),
        BlockWords(blocks).text);
  }
  return Status();
}

}  // namespace

Status SelectWorkspace(const Context& context, uint32_t n_tokens,
                       uint32_t n_lists, WorkspaceNeeds* out) {
  KV_RETURN_IF_ERROR(CheckTokenCount(n_tokens, 0, INT32_MAX, "most"));
  if (n_lists > 0) KV_RETURN_IF_ERROR(CheckListCount("n_lists", n_lists));
  out->least = out->best = SelectBytes(context, n_tokens, n_lists);
  return CheckFits(out->best);
}

Status Select(const Context& context, const kvevict_select_options& o,
              const TokenRanges& ranges, const kvevict_keep_lists& keep,
              const CallMemory& memory) {
  const Backend& backend = context.backend();
  if (o.select_block > SlotBlocks::kMostSize) {
    return InvalidArgument("select_block %u > %u", o.select_block,
                           SlotBlocks::kMostSize);
  }
  const SlotBlocks blocks = {std::max(1u, o.select_block)};
  KV_RETURN_IF_ERROR(CheckSelectEnums(o));
  KV_RETURN_IF_ERROR(CheckTokenCount(o.n_tokens, 1, INT32_MAX, "most"));
  KeepLists lists;
  KV_RETURN_IF_ERROR(CheckKeepLists(keep, &lists));
  KV_RETURN_IF_ERROR(
      CheckCounts(context, "keep.counts", lists.count, lists.n_lists));
  const ListCounts tokens(o.n_tokens, o.token_counts);
  KV_RETURN_IF_ERROR(
      CheckCounts(context, "token_counts", tokens, lists.n_lists));
  uint32_t rows_per_list = 1;
  KV_RETURN_IF_ERROR(CheckScores(o, lists.n_lists, &rows_per_list));
  if (Status status = CheckAscending({o.protected_slots, o.protected_slots_len},
                                     o.n_tokens);
      !status.ok()) {
    return Prefixed(status, "protected_slots");
  }
  KV_RETURN_IF_ERROR(CheckForced(o, blocks, tokens, lists, backend.on_host));
  const CheckedSize bytes = SelectBytes(context, o.n_tokens, lists.n_lists);
  KV_RETURN_IF_ERROR(CheckFits(bytes));
  const size_t needed_bytes = bytes.value();
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
    KV_RETURN_IF_ERROR(ReduceLists(context, memory.stream, o, rows_per_list,
                                   lists.n_lists, reduced));
    job.scores = reduced;
  }
  const Forced forced{
      o.n_sink, o.n_recent, {o.protected_slots, o.protected_slots_len}};
  return backend.select(context, memory.stream,
                        {Jobs<SelectJob>(job),
                         o.tie,
                         forced,
                         {keys + scratch, needed_bytes - scratch},
                         HeadSplit(),
                         blocks,
                         ranges.all()});
}

Status PlanSelection(const Plan& plan, uint32_t layer, uint32_t n_tokens,
                     uint32_t n_seen, kvevict_select_options* options,
                     kvevict_keep_lists* keep) {
  const Policy& policy = plan.policy();
  const PlanLayer& of_plan = plan.layer(layer);
  const bool model = plan.scope() == KVEVICT_SCOPE_MODEL;
  if (model && layer != 0) {
    return InvalidArgument("layer %u is not the first, %u, but scope is model",
                           of_plan.number, plan.layer(0).number);
  }
  if (CountsByScore(policy)) {
    return Unsupported(
        "layer %u: scores decide how many tokens its heads keep, only in "
        "kvevict_sequence_evict()",
        of_plan.number);
  }
  if (SplitsByScore(policy)) {
    return Unsupported(
        "layer %u: the scores of all layers decide how many tokens it keeps, "
        "only in kvevict_sequence_evict()",
        of_plan.number);
  }
  if (plan.IsRagged()) {
    return Unsupported("layer %u: its heads have budgets of their own",
                       of_plan.number);
  }
  if (plan.PinsBest() || SecuresMass(policy) || SecuresValues(policy)) {
    return Unsupported(
        "layer %u: only kvevict_sequence_evict() chooses tokens in two stages",
        of_plan.number);
  }
  KV_RETURN_IF_ERROR(
      CheckTokenCount(n_tokens, 1, plan.max_tokens(), "max_tokens"));
  if (HasChunks(policy) && n_tokens > policy.chunk) {
    return Unsupported(
        "layer %u: n_tokens %u > chunk %u: only kvevict_sequence_evict() "
        "chooses tokens chunk by chunk",
        of_plan.number, n_tokens, policy.chunk);
  }
  if (n_seen == 0) n_seen = n_tokens;
  if (n_seen < n_tokens || n_seen > INT32_MAX) {
    return InvalidArgument("n_seen %u is not 0 or in [n_tokens %u, %d]", n_seen,
                           n_tokens, INT32_MAX);
  }
  uint32_t budgets[kMaxLayers];
  const uint32_t n_context = plan.ContextOf(n_seen, n_tokens);
  KV_RETURN_IF_ERROR(
      plan.LayerBudgets(n_context, std::span(budgets).first(plan.n_layers())));
  options->n_tokens = n_tokens;
  options->tie = TieOf(policy);
  if (const SlotBlocks blocks = BlocksOf(policy); blocks.size > 1) {
    options->select_block = blocks.size;
  }
  options->reduce = policy.over;
  keep->n_lists = of_plan.n_lists;
  keep->count = BlocksOf(policy).Within(budgets[layer], n_tokens);
  if (plan.signal().Ranks()) {
    for (const PlanLayer& ranked :
         model ? plan.layers() : plan.layers().subspan(layer, 1)) {
      options->n_rows += ranked.geometry.n_kv_heads;
    }
  }
  if (keep->count == n_tokens) return Status();
  options->n_sink = policy.sink.count;
  options->n_recent = ForcedRecentTokens(InTokens(policy, n_context));
  return Status();
}

}  // namespace kvevict
