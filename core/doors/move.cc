// kvevict_compact() and kvevict_reorder(): moves of rows without a sequence.
#include <algorithm>

#include "core/doors/checks.h"
#include "core/doors/doors.h"
#include "core/view/overlap.h"
#include "core/view/row_change.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// The jobs of a call.
struct MoveJobs {
  MoveJob jobs[kMaxJobs];
  LayerCache caches[2 * kMaxJobs];  // of views and destinations
  size_t n = 0;
  size_t n_caches = 0;

  Jobs<MoveJob> all() const { return std::span(jobs).first(n); }
  Status CheckWorkspaceApart(std::span<const uint8_t> workspace) const {
    return CheckApartFrom("workspace", workspace.data(), workspace.size(),
                          "moves", std::span(caches).first(n_caches));
  }
};

// Rows to merge must be readable, and no part of them may be missing.
Status CheckMerge(const Move& move) {
  KV_RETURN_IF_ERROR(ValidateMerge(move.merge));
  if (!move.merge.Merges()) return Status();
  if (move.first_slot != 0) {
    return InvalidArgument(
        "merge %d with first_slot %u: only whole caches merge",
        static_cast<int>(move.merge.rule), move.first_slot);
  }
  if (move.has_destination) {
    return InvalidArgument(
        "merge %d with a destination: it would change the rows of view",
        static_cast<int>(move.merge.rule));
  }
  const kvevict_plane& k = move.view.k;
  const kvevict_plane& v = move.view.v;
  if (!IsPresent(k)) {
    return InvalidArgument(
        "view: k.data is 0, but merge finds targets by keys");
  }
  const kvevict_reason reason =
      MergeReason(move.merge, k.dtype, IsPresent(v), v.dtype);
  if (reason == KVEVICT_REASON_NONE) return Status();
  return Unsupported("view: cannot merge: %s", ReasonText(reason));
}

// The first slot of the view that is read or written.
uint32_t FirstMoved(const Move& move) {
  return move.has_destination ? 0 : move.first_slot;
}

// Checks that the longest head holds as many slots as are kept.
Status CheckSlots(const Move& move, const char* name, uint32_t n_tokens) {
  if (n_tokens > INT32_MAX) {
    return InvalidArgument("%s %u > %d", name, n_tokens, INT32_MAX);
  }
  const uint32_t first_slot = FirstMoved(move);
  if (uint64_t{first_slot} + move.keep.count <= n_tokens) return Status();
  if (first_slot == 0) {
    return InvalidArgument("keep.count %u > n_tokens %u", move.keep.count,
                           n_tokens);
  }
  return InvalidArgument("first_slot %u + keep.count %u > n_tokens %u",
                         first_slot, move.keep.count, n_tokens);
}

// The slots of a destination, per head, up to the last one that is written.
ListCounts WrittenSlots(const Move& move, bool reads_counts) {
  const kvevict_keep_lists& keep = move.keep;
  ListCounts n(keep.count, reads_counts ? keep.counts : nullptr);
  if (keep.n_lists == 1) n = n.Of(0);
  n.most += move.first_slot;
  n.more = move.first_slot;
  return n;
}

// Checks the destination, and notes in the job how rows change on their way there.
Status CheckDestination(const Move& move, bool on_host, bool reads_counts,
                        MoveJob* out) {
  if (!move.has_destination) return Status();
  if (uint64_t{move.first_slot} + move.keep.count > INT32_MAX) {
    return InvalidArgument("first_slot %u + keep.count %u > %d",
                           move.first_slot, move.keep.count, INT32_MAX);
  }
  KV_RETURN_IF_ERROR(kvevict::CheckDestination(move.view, move.destination,
                                               WrittenSlots(move, reads_counts),
                                               move.first_slot, on_host));
  out->change = ChangeOf(move.view, move.destination);
  return Status();
}

// Makes the job that moves rows of a view of which `tokens` slots will be
// addressed.
Status MakeMoveJob(const Move& move, const ListCounts& tokens,
                   bool reads_blocks, const char* n_tokens_name, MoveJob* out) {
  KV_RETURN_IF_ERROR(CheckSlots(move, n_tokens_name, tokens.most));
  Status status =
      ValidateView(move.view, tokens, reads_blocks, FirstMoved(move));
  if (!status.ok()) return Prefixed(status, "view: ");
  const kvevict_keep_lists& keep = move.keep;
  if (keep.n_lists != 1 && keep.n_lists != move.view.n_kv_heads) {
    return InvalidArgument("keep.n_lists %u is not 1 or n_kv_heads %u",
                           keep.n_lists, move.view.n_kv_heads);
  }
  KV_RETURN_IF_ERROR(CheckMerge(move));
  out->view = &move.view;
  out->tokens = tokens;
  out->merge = move.merge;
  out->first_slot = move.first_slot;
  if (!move.has_destination) return Status();
  out->destination = &move.destination;
  return Status();
}

// The slots that all heads of a list hold.
uint32_t HeldBy(const ListCounts& tokens, uint32_t list, const Move& move) {
  if (tokens.each == nullptr || move.keep.n_lists > 1) return tokens.Of(list);
  return *std::min_element(tokens.each, tokens.each + move.view.n_kv_heads);
}

// Like CheckAscending(), but for slots in any order.
Status CheckHeld(std::span<const int32_t> slots, uint32_t n_tokens, uint32_t) {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= 0 && slots[i] < int64_t{n_tokens}) continue;
    return InvalidArgument("[%zu] %d is not in [0, n_tokens %u)", i, slots[i],
                           n_tokens);
  }
  return Status();
}

// Checks that an ascending list ends with the slots of recent rows.
Status CheckEnd(uint32_t list, const KeepLists& keep, uint32_t n_recent,
                uint32_t first_recent) {
  const uint32_t count = keep.count.Of(list);
  if (n_recent == 0 || (count == keep.count.most && count >= n_recent &&
                        keep.List(list)[count - n_recent] ==
                            static_cast<int32_t>(first_recent))) {
    return Status();
  }
  return InvalidArgument(
      "keep[%u]: its %u slots must end with the %u from first_recent %u on and "
      "be %u as in the longest list",
      list, count, n_recent, first_recent, keep.count.most);
}

// The same for lists that cannot be read.
Status CheckRecentStay(const KeepLists& keep, uint32_t n_recent) {
  if (keep.count.each != nullptr) {
    return Unsupported(
        "keep.counts is not NULL: with %u recent rows CUDA needs lists of one "
        "length",
        n_recent);
  }
  if (keep.count.most >= n_recent) return Status();
  return InvalidArgument("keep.count %u < %u recent rows, which stay",
                         keep.count.most, n_recent);
}

// The type of CheckAscending() and CheckHeld().
using CheckList = Status (*)(std::span<const int32_t> slots, uint32_t n_tokens,
                             uint32_t first_slot);

Status CheckMove(const Context& context, const Move& move, CheckList check,
                 MoveJob* out) {
  const ListCounts tokens(move.n_tokens, move.token_counts);
  // a view with more heads is refused below
  if (move.view.n_kv_heads <= kMaxHeads) {
    KV_RETURN_IF_ERROR(
        CheckCounts(context, "token_counts", tokens, move.view.n_kv_heads));
  }
  KV_RETURN_IF_ERROR(
      MakeMoveJob(move, tokens, context.backend().on_host, "n_tokens", out));
  if (move.keeps_all) {
    out->keep = {nullptr, move.keep.n_lists, tokens, move.n_tokens};
  } else {
    KV_RETURN_IF_ERROR(CheckKeepLists(move.keep, &out->keep));
  }
  const KeepLists& keep = out->keep;
  KV_RETURN_IF_ERROR(
      CheckCounts(context, "keep.counts", keep.count, keep.n_lists));
  const bool on_host = context.backend().on_host;
  KV_RETURN_IF_ERROR(CheckDestination(move, on_host, on_host, out));
  if (!move.has_destination && keep.count.most > 0) {
    const Status status = CheckNotShared(move.view, move.first_slot);
    if (!status.ok()) return Prefixed(status, "view: ");
  }
  if (move.keeps_all) return Status();
  const uint32_t n_recent =
      move.has_destination ? 0 : RecentOf(move.view, tokens.most);
  if (n_recent > 0 && !on_host) {
    KV_RETURN_IF_ERROR(CheckRecentStay(keep, n_recent));
  }
  for (uint32_t list = 0; on_host && list < keep.n_lists; ++list) {
    const uint32_t n_held = HeldBy(tokens, list, move);
    // Slots below the count are written.
    if (keep.count.Of(list) > n_held) {
      return InvalidArgument("keep[%u]: count %u > %u tokens held", list,
                             keep.count.Of(list), n_held);
    }
    if (Status status = check({keep.List(list), keep.count.Of(list)}, n_held,
                              FirstMoved(move));
        !status.ok()) {
      return Prefixed(status, "keep[%u]", list);
    }
    KV_RETURN_IF_ERROR(CheckEnd(list, keep, n_recent, move.view.first_recent));
  }
  if (!move.has_destination) out->StayWhereRecent();
  return Status();
}

Status CheckMoves(const Context& context, std::span<const Move> moves,
                  CheckList check, MoveJobs* out) {
  const bool on_host = context.backend().on_host;
  size_t n_caches = 0;
  for (uint32_t i = 0; i < moves.size(); ++i) {
    const Move& move = moves[i];
    if (Status status = CheckMove(context, move, check, &out->jobs[i]);
        !status.ok()) {
      return moves.size() == 1 ? status : Prefixed(status, "moves[%u]: ", i);
    }
    out->caches[n_caches++] =
        CacheOf(move.view, i, {move.n_tokens, move.token_counts}, on_host,
                FirstMoved(move));
    if (!move.has_destination) continue;
    out->caches[n_caches] =
        CacheOf(move.destination, i, WrittenSlots(move, on_host), on_host,
                move.first_slot);
    out->caches[n_caches++].is_destination = true;
  }
  out->n = moves.size();
  out->n_caches = n_caches;
  const std::span<LayerCache> caches = std::span(out->caches).first(n_caches);
  KV_RETURN_IF_ERROR(CheckDistinct("moves", caches));
  for (const LayerCache& cache : caches) {
    if (cache.shared_companions == 0) continue;
    return InvalidArgument(
        "moves[%u].%s shares a companion with an earlier move: it would move "
        "twice",
        cache.number, cache.is_destination ? "destination" : "view");
  }
  return Status();
}

// The bytes for the largest job: layers use the memory one after the other.
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

ScratchNeeds MergeNeeds(const Context& context, const MoveJob& job,
                        uint32_t n_layers) {
  if (!job.merge.Merges()) return CheckedSize(0);
  const kvevict_view& view = *job.view;
  return context.backend().merge.scratch(
      context, {view.n_kv_heads, view.k.head_dim, view.v.head_dim,
                job.tokens.most, n_layers});
}

// Fills jobs for a size query: the view and the lists' count, and the slots if
// rows are merged.
Status SizedJobs(std::span<const Move> moves, MoveJobs* out) {
  for (size_t i = 0; i < moves.size(); ++i) {
    const kvevict_keep_lists& keep = moves[i].keep;
    const uint64_t n_slots = uint64_t{FirstMoved(moves[i])} + keep.count;
    KV_RETURN_IF_ERROR(MakeMoveJob(
        moves[i],
        static_cast<uint32_t>(std::min<uint64_t>(n_slots, UINT32_MAX)), false,
        "first_slot + keep.count", &out->jobs[i]));
    KV_RETURN_IF_ERROR(CheckDestination(moves[i], false, false, &out->jobs[i]));
    out->jobs[i].keep = KeepLists::Packed(nullptr, keep.n_lists, keep.count);
    if (!moves[i].merge.Merges()) continue;
    KV_RETURN_IF_ERROR(CheckSlots(moves[i], "n_tokens", moves[i].n_tokens));
    out->jobs[i].tokens = moves[i].n_tokens;
  }
  out->n = moves.size();
  return Status();
}

// Merging and compaction run one after the other.
WorkspaceNeeds CompactNeeds(const Context& context, Jobs<MoveJob> jobs) {
  const Backend& backend = context.backend();
  const auto n_layers = static_cast<uint32_t>(jobs.size());
  WorkspaceNeeds needs;
  needs.least = LargestOf(jobs, [&](const MoveJob& job) {
    return MergeNeeds(context, job, 1).least;
  });
  const CheckedSize merging = LargestOf(jobs, [&](const MoveJob& job) {
    return MergeNeeds(context, job, n_layers).best;
  });
  const CheckedSize moving = backend.compact.scratch(context, jobs).best;
  needs.best =
      merging.ok() && merging.value() < moving.value() ? moving : merging;
  return needs;
}

CheckedSize ReorderBytes(const Context& context, Jobs<MoveJob> jobs) {
  return LargestOf(jobs, [&](const MoveJob& job) {
    return context.backend().reorder.scratch(context, job).best;
  });
}

// Reordering neither changes rows nor moves them to another cache.
Status CheckMovesWithin(std::span<const Move> moves) {
  for (size_t i = 0; i < moves.size(); ++i) {
    const Move& move = moves[i];
    if (move.merge.Merges()) {
      return InvalidArgument(
          "moves[%zu]: merge %d: a reordering merges nothing", i,
          static_cast<int>(move.merge.rule));
    }
    if (move.first_slot != 0) {
      return InvalidArgument(
          "moves[%zu]: first_slot %u: a reordering begins at slot 0", i,
          move.first_slot);
    }
    if (move.has_destination) {
      return InvalidArgument(
          "moves[%zu]: destination is not NULL: a reordering is in place", i);
    }
    if (Status status = CheckMovesByRow(move.view); !status.ok()) {
      return Prefixed(status, "moves[%zu]: view: ", i);
    }
  }
  return Status();
}

}  // namespace

Status CompactWorkspace(const Context& context, std::span<const Move> moves,
                        WorkspaceNeeds* out) {
  MoveJobs sized;
  KV_RETURN_IF_ERROR(SizedJobs(moves, &sized));
  *out = CompactNeeds(context, sized.all());
  return CheckFits(out->best);
}

Status Compact(const Context& context, std::span<const Move> moves,
               const CallMemory& memory) {
  MoveJobs checked;
  KV_RETURN_IF_ERROR(CheckMoves(context, moves, CheckAscending, &checked));
  const Backend& backend = context.backend();
  const Jobs<MoveJob> jobs = checked.all();
  const WorkspaceNeeds needs = CompactNeeds(context, jobs);
  KV_RETURN_IF_ERROR(CheckFits(needs.best));
  KV_RETURN_IF_ERROR(
      CheckWorkspace(context, memory.workspace, memory.workspace_bytes, needs));
  const bool merges = needs.least.value() > 0;
  std::span<uint8_t> scratch;
  if (merges || memory.workspace_bytes >= needs.best.value()) {
    const size_t useful_bytes =
        std::min(memory.workspace_bytes, needs.best.value());
    KV_RETURN_IF_ERROR(CheckMemory("workspace", context, memory.workspace,
                                   memory.workspace_bytes, useful_bytes));
    scratch = {static_cast<uint8_t*>(memory.workspace), useful_bytes};
    KV_RETURN_IF_ERROR(checked.CheckWorkspaceApart(scratch));
  }
  if (merges) {
    const MergeArgs args{jobs, scratch};
    KV_RETURN_IF_ERROR(backend.merge.check(context, memory.stream, args));
    KV_RETURN_IF_ERROR(backend.merge(context, memory.stream, args));
  }
  const bool changes = AnyChanges(jobs);
  if (changes) {
    KV_RETURN_IF_ERROR(
        backend.requantize.check(context, memory.stream, {jobs}));
  }
  KV_RETURN_IF_ERROR(backend.compact(context, memory.stream, {jobs, scratch}));
  if (!changes) return Status();
  return backend.requantize(context, memory.stream, {jobs});
}

Status ReorderWorkspace(const Context& context, std::span<const Move> moves,
                        WorkspaceNeeds* out) {
  MoveJobs sized;
  KV_RETURN_IF_ERROR(CheckMovesWithin(moves));
  KV_RETURN_IF_ERROR(SizedJobs(moves, &sized));
  out->least = out->best = ReorderBytes(context, sized.all());
  return CheckFits(out->best);
}

Status Reorder(const Context& context, std::span<const Move> moves,
               const CallMemory& memory) {
  MoveJobs checked;
  KV_RETURN_IF_ERROR(CheckMovesWithin(moves));
  KV_RETURN_IF_ERROR(CheckMoves(context, moves, CheckHeld, &checked));
  const CheckedSize bytes = ReorderBytes(context, checked.all());
  KV_RETURN_IF_ERROR(CheckFits(bytes));
  const size_t needed_bytes = bytes.value();
  KV_RETURN_IF_ERROR(CheckMemory("workspace", context, memory.workspace,
                                 memory.workspace_bytes, needed_bytes));
  const std::span<uint8_t> scratch(static_cast<uint8_t*>(memory.workspace),
                                   needed_bytes);
  KV_RETURN_IF_ERROR(checked.CheckWorkspaceApart(scratch));
  return context.backend().reorder(context, memory.stream,
                                   {checked.all(), scratch});
}

}  // namespace kvevict
