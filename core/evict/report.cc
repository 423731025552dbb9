// Fills the report of an eviction.
#include "core/evict/call.h"
#include "core/view/block_numbers.h"
#include "core/view/extent.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

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

}  // namespace

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

void FillReport(const EvictCall& call) {
  call.sequence.BeginReport();
  for (const LayerOutcome& layer : call.layers) {
    const ListCounts before = call.slots.HostTokens(layer.layer);
    const ListCounts after = AfterOf(call, layer);
    ReportLayer(call, layer.layer, before, after);
    if (layer.owner != layer.layer) continue;
    call.sequence.report().n_weak_fits +=
        CountWeakFits(call, layer, before, after);
  }
  call.sequence.report().evicted = call.LosesTokens();
  for (const LayerOutcome& layer : call.layers) {
    if (!layer.lacks_room) continue;
    call.sequence.report().reason = KVEVICT_REASON_SMALL_BUDGET;
  }
}

}  // namespace kvevict
