#include "core/evict/evict.h"

#include <algorithm>

#include "core/evict/block_tables.h"
#include "core/policy/policy.h"
#include "core/view/block_numbers.h"
#include "core/view/extent.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {

EvictCall::EvictCall(Sequence& of)
    : sequence(of),
      slots(of.slots()),
      plan(of.plan()),
      context(plan.context()),
      policy(plan.policy()),
      signal(plan.signal()),
      views_(context),
      inputs_(context),
      caches_(context),
      outcomes_(context),
      evictions_(context),
      host_jobs_(context),
      budgets_(context),
      chunk_ends_(context),
      chunked_layers_(context),
      measures_(context),
      winners_(context),
      host_scores_(context),
      host_keep_(context) {}

Status EvictCall::Allocate() {
  const CheckedSize n_layers(plan.n_layers());
  const CheckedSize n_views =
      n_layers * CheckedSize(plan.HasDestinations() ? 2 : 1);
  KV_RETURN_IF_ERROR(views_.Allocate("views of the layers", n_views));
  KV_RETURN_IF_ERROR(inputs_.Allocate("inputs of the layers", n_layers));
  KV_RETURN_IF_ERROR(caches_.Allocate("caches of the layers", n_views));
  if (TouchesNothing(policy) && !plan.HasDestinations()) return Status();
  KV_RETURN_IF_ERROR(budgets_.Allocate("budgets of the layers", n_layers));
  KV_RETURN_IF_ERROR(outcomes_.Allocate("outcomes of the layers", n_layers));
  KV_RETURN_IF_ERROR(evictions_.Allocate("evictions of the layers", n_layers));
  if (HasChunks(policy)) {
    const Chunks most(policy, plan.max_tokens());
    KV_RETURN_IF_ERROR(chunk_ends_.Allocate(
        "ends of the chunks", n_layers * CheckedSize(most.Count())));
    KV_RETURN_IF_ERROR(chunked_layers_.Allocate("layers in chunks", n_layers));
  }
  if (MeasuresLayers(policy)) {
    KV_RETURN_IF_ERROR(measures_.Allocate("measures of the layers",
                                          n_layers * CheckedSize(2)));
  }
  if (LayersCompete(policy)) {
    KV_RETURN_IF_ERROR(
        winners_.Allocate("winners of the lists", CheckedSize(plan.n_lists())));
  }
  if (context.options().select_on_host == 0) return Status();
  KV_RETURN_IF_ERROR(host_jobs_.Allocate("jobs on the host", n_layers));
  KV_RETURN_IF_ERROR(host_scores_.AllocateUncleared(
      "scores on the host", CheckedSize(plan.n_scores())));
  return host_keep_.AllocateUncleared("keep lists on the host",
                                      plan.keep_capacity());
}

void EvictCall::Begin(const kvevict_evict_options& with, void* memory,
                      const EvictWorkspace& parts, uint32_t n_longest,
                      bool due) {
  options = with;
  workspace = static_cast<uint8_t*>(memory);
  layout = parts;
  n_tokens = n_longest;
  is_due = due;
  is_begun = true;
  layers = {};
  active = {};
  forced = {};
}

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
          "protected_positions[%zu] %d is not in [%d, %u): positions must "
          "ascend",
          i, position, least, logical_length);
    }
    least = position + 1;
  }
  return Status();
}

// The tokens that are not recent rows.
ListCounts Without(const ListCounts& tokens, uint32_t n_recent) {
  return n_recent == 0 ? tokens : ListCounts(tokens.most - n_recent);
}

uint64_t Bytes(const LayerCache& cache, const ListCounts& tokens,
               uint32_t n_recent) {
  uint64_t bytes = 0;
  for (uint32_t head = 0; head < cache.view->n_kv_heads; ++head) {
    bytes += HeadBytes(*cache.view, tokens.Of(head), n_recent,
                       cache.shared_companions);
  }
  return bytes;
}

// Adds a layer to the totals. A null destination means that rows stay in
// `cache`.
void AddLayer(const LayerCache& cache, const LayerCache* destination,
              const ListCounts& before, const ListCounts& after,
              kvevict_evict_report* report) {
  const kvevict_view& view = *cache.view;
  const uint32_t n_recent = RecentOf(view, before.most);
  report->tokens_before += before.most;
  report->tokens_after += after.most;
  report->bytes_before += Bytes(cache, before, n_recent);
  if (destination != nullptr) {
    report->bytes_after +=
        Bytes(*destination, after, RecentOf(*destination->view, after.most));
    return;
  }
  report->bytes_after += Bytes(cache, after, n_recent);
  if (view.block_size == 0) return;
  const BlockTables tables_before(view, Without(before, n_recent));
  const BlockTables tables_after(view, Without(after, n_recent));
  for (uint32_t table = 0; table < tables_before.n_tables(); ++table) {
    report->blocks_freed +=
        tables_before.Used(table) - tables_after.Used(table);
  }
}

// Slots in use by each list after the eviction, as the host knows them.
ListCounts AfterOf(const EvictCall& call, const LayerOutcome& layer) {
  if (!layer.loses) return call.slots.HostTokens(layer.layer);
  return call.slots.HostNext(layer.layer, layer.n_keep);
}

// Reports a layer's lists. A layer whose cache is that of an earlier one adds
// nothing to the totals.
void ReportLayer(const EvictCall& call, uint32_t l, const ListCounts& before,
                 const ListCounts& after) {
  const PlanLayer& layer = call.plan.layer(l);
  for (uint32_t i = 0; i < layer.n_lists; ++i) {
    call.sequence.list_reports()[layer.first_list + i] = {before.Of(i),
                                                          after.Of(i)};
  }
  const LayerCache& cache = call.caches()[l];
  if (cache.owner != l) return;
  const bool has_destination = call.is_begun && call.HasDestinations();
  AddLayer(
      cache,
      has_destination ? &call.both_caches()[call.plan.n_layers() + l] : nullptr,
      before, after, &call.sequence.report());
}

// Reports an eviction that does nothing.
void ReportUnchanged(const EvictCall& call) {
  call.sequence.BeginReport();
  for (uint32_t l = 0; l < call.plan.n_layers(); ++l) {
    const ListCounts tokens = call.slots.HostTokens(l);
    ReportLayer(call, l, tokens, tokens);
  }
}

// The caches of a sequence's first layer: its view, and its destination if it
// has one.
struct FirstCaches {
  LayerCache caches[2];
  bool is_written[2];
  uint32_t n = 1;

  explicit FirstCaches(const EvictCall& call) {
    caches[0] = call.caches()[0];
    is_written[0] = IsToEvict(call) && !call.HasDestinations();
    if (!IsToEvict(call) || is_written[0]) return;
    caches[1] = call.both_caches()[call.plan.n_layers()];
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
  if (a.reach.Meets(b.reach)) return CheckApart("views", caches);
  return Status();
}

// Adds n_new rows to caches whose views say where these will lie. Views with
// blocks or recent rows do not say.
void AddRows(const EvictCall& call, uint32_t n_new) {
  const bool on_host = call.backend().on_host;
  for (LayerCache& cache : call.caches()) {
    const kvevict_view& view = *cache.view;
    if (view.block_size != 0 || FirstRecent(view) != UINT32_MAX) continue;
    const ListCounts tokens(cache.tokens.most + n_new);
    KeptErrorMessage message;
    if (!ValidateView(view, tokens, on_host).ok()) continue;
    cache = CacheOf(view, cache.number, tokens, on_host);
  }
  FindShared(call.caches());
}

uint32_t Longest(const EvictCall& call) {
  return std::max(1u, call.slots.Longest());
}

}  // namespace

void FillReport(const EvictCall& call) {
  call.sequence.BeginReport();
  for (const LayerOutcome& layer : call.layers) {
    const ListCounts before = call.slots.HostTokens(layer.layer);
    const ListCounts after = AfterOf(call, layer);
    ReportLayer(call, layer.layer, before, after);
    if (!FitsValues(call.policy) || layer.owner != layer.layer) continue;
    call.sequence.report().n_weak_fits +=
        CountWeakFits(call, layer, before, after);
  }
  call.sequence.report().evicted = call.LosesTokens();
  for (const LayerOutcome& layer : call.layers) {
    if (!layer.lacks_room) continue;
    call.sequence.report().reason = KVEVICT_REASON_SMALL_BUDGET;
  }
}

WorkspaceNeeds NeedsToEvict(const EvictCall& call) {
  return call.plan.WorkspaceFor(KVEVICT_OPERATION_EVICT, Longest(call));
}

Status CheckEvict(EvictCall* call, const kvevict_evict_options& options,
                  void* workspace, size_t workspace_bytes) {
  const Plan& plan = call->plan;
  const Sequence& sequence = call->sequence;
  const uint32_t n_tokens = Longest(*call);
  call->End();
  KV_RETURN_IF_ERROR(CheckWorkspace(call->context, workspace, workspace_bytes,
                                    NeedsToEvict(*call)));
  KV_RETURN_IF_ERROR(CheckOptions(sequence.logical_length(), options));
  if (options.undo != nullptr) KV_RETURN_IF_ERROR(CheckPolicyUndoes(*call));
  const bool is_due = !TouchesNothing(call->policy) &&
                      sequence.prompt().IsDue(sequence.logical_length());
  if (!is_due && options.destinations == nullptr) {
    KV_RETURN_IF_ERROR(FindCaches(*call));
    return options.by_table != 0 ? CheckTables(plan, call->views()) : Status();
  }
  call->Begin(
      options, workspace,
      is_due ? plan.LayOutEvict(n_tokens, workspace_bytes) : EvictWorkspace(),
      n_tokens, is_due);
  KV_RETURN_IF_ERROR(Check(*call));
  return CheckWorkspaceApart(*call, workspace, WorkspaceBytes(*call));
}

size_t WorkspaceBytes(const EvictCall& call) {
  return IsToEvict(call) ? call.layout.bytes : 0;
}

Status CheckWorkspaceApart(const EvictCall& call, const void* workspace,
                           size_t n_bytes) {
  if (n_bytes == 0) return Status();
  return CheckApartFrom("workspace", workspace, n_bytes, "views",
                        call.is_begun && call.HasDestinations()
                            ? call.both_caches()
                            : call.caches());
}

Status CheckEvictAhead(const EvictCall& call,
                       const kvevict_evict_options& options, void* workspace,
                       size_t workspace_bytes, uint32_t n_new,
                       uint32_t n_to_come) {
  const Plan& plan = call.plan;
  const uint32_t n_tokens = std::max(1u, call.slots.Longest() + n_new);
  KV_RETURN_IF_ERROR(
      CheckWorkspace(call.context, workspace, workspace_bytes,
                     plan.WorkspaceFor(KVEVICT_OPERATION_EVICT, n_tokens)));
  KV_RETURN_IF_ERROR(
      CheckOptions(call.sequence.logical_length() + n_to_come, options));
  KV_RETURN_IF_ERROR(FindCaches(call));
  if (options.by_table != 0) {
    KV_RETURN_IF_ERROR(CheckTables(plan, call.views()));
  }
  if (TouchesNothing(call.policy)) return Status();
  AddRows(call, n_new);
  KV_RETURN_IF_ERROR(CheckApart("views", call.caches()));
  const size_t n_bytes = plan.LayOutEvict(n_tokens, workspace_bytes).bytes;
  if (n_bytes == 0) return Status();
  return CheckApartFrom("workspace", workspace, n_bytes, "views",
                        call.caches());
}

bool IsToEvict(const EvictCall& call) {
  return call.is_begun && call.HasWork();
}

bool WritesViews(const EvictCall& call) {
  return IsToEvict(call) && call.WritesViews();
}

bool IsByTable(const EvictCall& call) {
  return IsToEvict(call) && call.IsByTable();
}

Status CheckCachesApart(const EvictCall& a, const EvictCall& b) {
  const FirstCaches ours(a), theirs(b);
  for (uint32_t i = 0; i < ours.n; ++i) {
    for (uint32_t j = 0; j < theirs.n; ++j) {
      if (!ours.is_written[i] && !theirs.is_written[j]) continue;
      KV_RETURN_IF_ERROR(CheckTwoApart(ours.caches[i], theirs.caches[j]));
    }
  }
  return Status();
}

Status RunEvict(EvictCall* call) {
  if (!call->is_begun) {
    ReportUnchanged(*call);
    return Status();
  }
  if (!call->HasWork()) {
    FillReport(*call);
  } else if (Status status = Run(*call); !status.ok()) {
    call->sequence.ClearReport();
    return status;
  }
  if (call->is_due) call->sequence.BeginRound();
  return Status();
}

}  // namespace kvevict
