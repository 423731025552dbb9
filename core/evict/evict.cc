#include "core/evict/evict.h"

#include <algorithm>
#include <optional>

#include "core/evict/block_tables.h"
#include "core/evict/eviction.h"
#include "core/policy/policy.h"
#include "core/view/overlap.h"

namespace kvevict {
namespace {

Status CheckOptions(uint32_t logical_length,
                    const kvevict_evict_options& options) {
  if (options.by_table > 1) {
    return InvalidArgument("by_table %u is not 0 or 1", options.by_table);
  }
  if (options.protected_positions_len > 0 &&
      options.protected_positions == nullptr) {
    return InvalidArgument(
        "protected_positions is NULL, but protected_positions_len is %zu",
        options.protected_positions_len);
  }
  if (options.undo_bytes > 0 && options.undo == nullptr) {
    return InvalidArgument("undo is NULL, but undo_bytes is %zu",
                           options.undo_bytes);
  }
  int32_t least = 0;
  for (size_t i = 0; i < options.protected_positions_len; ++i) {
    const int32_t position = options.protected_positions[i];
    if (position < least || static_cast<uint32_t>(position) >= logical_length) {
      return InvalidArgument(
          "protected_positions[%zu] %d: ascending positions in [%d, %u) are "
          "wanted",
          i, position, least, logical_length);
    }
    least = position + 1;
  }
  return Status();
}

// Where nothing is to be done.
void ReportUnchanged(Sequence* sequence) {
  sequence->BeginReport();
  for (uint32_t l = 0; l < sequence->plan().n_layers(); ++l) {
    const ListCounts tokens = sequence->slots().HostTokens(l);
    ReportLayer(sequence, l, tokens, tokens);
  }
}

// Of a sequence's first layer: its view, and where it has one its destination.
struct FirstCaches {
  LayerCache caches[2];
  bool is_written[2];
  uint32_t n = 1;

  explicit FirstCaches(const Sequence& sequence) {
    caches[0] = sequence.caches()[0];
    is_written[0] =
        IsToEvict(sequence) && !sequence.eviction()->HasDestinations();
    if (!IsToEvict(sequence) || is_written[0]) return;
    caches[1] = sequence.both_caches()[sequence.plan().n_layers()];
    is_written[1] = true;
    n = 2;
  }
};

Status CheckTwoApart(const LayerCache& a, const LayerCache& b) {
  LayerCache caches[] = {a, b};
  for (uint32_t i = 0; i < 2; ++i) {
    if (caches[i].view->block_size != 0) return Status();
    caches[i].owner = i;
  }
  for (const LayerCache::Reach& p : a.reach) {
    for (const LayerCache::Reach& q : b.reach) {
      if (p.Meets(q)) return CheckApart("views", caches);
    }
  }
  return Status();
}

// To caches whose views say where further tokens will lie: those of blocks and of
// recent rows do not.
void AddRows(const Sequence& sequence, uint32_t n_new) {
  const bool on_host = sequence.plan().context().backend().on_host;
  for (LayerCache& cache : sequence.caches()) {
    const kvevict_view& view = *cache.view;
    if (view.block_size != 0 || FirstRecent(view) != UINT32_MAX) continue;
    const ListCounts tokens(cache.tokens.most + n_new);
    KeptErrorMessage message;
    if (!ValidateView(view, tokens, on_host).ok()) continue;
    cache = CacheOf(view, cache.number, tokens, on_host);
  }
  FindShared(sequence.caches());
}

uint32_t Longest(const Sequence& sequence) {
  return std::max(1u, sequence.slots().Longest());
}

}  // namespace

WorkspaceNeeds NeedsToEvict(const Sequence& sequence) {
  return sequence.plan().WorkspaceFor(KVEVICT_OPERATION_EVICT,
                                      Longest(sequence));
}

Status CheckEvict(Sequence* sequence, const kvevict_evict_options& options,
                  void* workspace, size_t workspace_bytes) {
  const Plan& plan = sequence->plan();
  const uint32_t n_tokens = Longest(*sequence);
  std::optional<Eviction>& eviction = sequence->eviction();
  eviction.reset();
  KV_RETURN_IF_ERROR(CheckWorkspace(plan.context(), workspace, workspace_bytes,
                                    NeedsToEvict(*sequence)));
  KV_RETURN_IF_ERROR(CheckOptions(sequence->logical_length(), options));
  const bool is_due = !TouchesNothing(plan.policy()) &&
                      sequence->prompt().IsDue(sequence->logical_length());
  if (!is_due && options.destinations == nullptr) {
    KV_RETURN_IF_ERROR(FindCaches(*sequence));
    return options.by_table != 0 ? CheckTables(plan, sequence->views())
                                 : Status();
  }
  eviction.emplace(
      sequence, options, workspace,
      is_due ? plan.LayOutEvict(n_tokens, workspace_bytes) : EvictWorkspace(),
      n_tokens, is_due);
  KV_RETURN_IF_ERROR(eviction->Check());
  return CheckWorkspaceApart(*sequence, workspace, WorkspaceBytes(*sequence));
}

size_t WorkspaceBytes(const Sequence& sequence) {
  return IsToEvict(sequence) ? sequence.eviction()->workspace_bytes() : 0;
}

Status CheckWorkspaceApart(const Sequence& sequence, const void* workspace,
                           size_t n_bytes) {
  if (n_bytes == 0) return Status();
  const std::optional<Eviction>& eviction = sequence.eviction();
  const bool has_destinations =
      eviction.has_value() && eviction->HasDestinations();
  return CheckApartFrom(
      "workspace", workspace, n_bytes, "views",
      has_destinations ? sequence.both_caches() : sequence.caches());
}

Status CheckEvictAhead(const Sequence& sequence,
                       const kvevict_evict_options& options, void* workspace,
                       size_t workspace_bytes, uint32_t n_new,
                       uint32_t n_to_come) {
  const Plan& plan = sequence.plan();
  const uint32_t n_tokens = std::max(1u, sequence.slots().Longest() + n_new);
  KV_RETURN_IF_ERROR(
      CheckWorkspace(plan.context(), workspace, workspace_bytes,
                     plan.WorkspaceFor(KVEVICT_OPERATION_EVICT, n_tokens)));
  KV_RETURN_IF_ERROR(
      CheckOptions(sequence.logical_length() + n_to_come, options));
  KV_RETURN_IF_ERROR(FindCaches(sequence));
  if (options.by_table != 0) {
    KV_RETURN_IF_ERROR(CheckTables(plan, sequence.views()));
  }
  if (TouchesNothing(plan.policy())) return Status();
  AddRows(sequence, n_new);
  KV_RETURN_IF_ERROR(CheckApart("views", sequence.caches()));
  const size_t n_bytes = plan.LayOutEvict(n_tokens, workspace_bytes).bytes;
  if (n_bytes == 0) return Status();
  return CheckApartFrom("workspace", workspace, n_bytes, "views",
                        sequence.caches());
}

bool IsToEvict(const Sequence& sequence) {
  return sequence.eviction().has_value() && sequence.eviction()->HasWork();
}

bool WritesViews(const Sequence& sequence) {
  return IsToEvict(sequence) && sequence.eviction()->WritesViews();
}

bool IsByTable(const Sequence& sequence) {
  return IsToEvict(sequence) && sequence.eviction()->IsByTable();
}

Status CheckCachesApart(const Sequence& a, const Sequence& b) {
  const FirstCaches ours(a), theirs(b);
  for (uint32_t i = 0; i < ours.n; ++i) {
    for (uint32_t j = 0; j < theirs.n; ++j) {
      if (!ours.is_written[i] && !theirs.is_written[j]) continue;
      KV_RETURN_IF_ERROR(CheckTwoApart(ours.caches[i], theirs.caches[j]));
    }
  }
  return Status();
}

Status CheckUndoApart(const Sequence& a, const Sequence& b) {
  const std::optional<Eviction>& saving = a.eviction();
  if (!saving.has_value() || !saving->Saves()) return Status();
  KV_RETURN_IF_ERROR(saving->CheckUndoApart(b));
  const std::optional<Eviction>& other = b.eviction();
  if (!other.has_value() || !other->Saves()) return Status();
  return saving->CheckUndoApart(*other);
}

Status RunEvict(Sequence* sequence) {
  std::optional<Eviction>& eviction = sequence->eviction();
  if (!eviction.has_value()) {
    ReportUnchanged(sequence);
    return Status();
  }
  if (!eviction->HasWork()) {
    eviction->FillReport();
  } else if (Status status = eviction->Run(); !status.ok()) {
    sequence->ClearReport();
    return status;
  }
  if (eviction->IsDue()) sequence->BeginRound();
  return Status();
}

}  // namespace kvevict
