// What an eviction tells.
#include "core/block_numbers.h"
#include "core/evict/eviction.h"
#include "core/view.h"

namespace kvevict {
namespace {

// Of a layer that is no other's.
void AddLayer(const LayerCache& cache, const ListCounts& before,
              const ListCounts& after, kvevict_evict_report* report) {
  const kvevict_view& view = *cache.view;
  const uint64_t head_bytes =
      TokenBytes(view, cache.shared_companions) / view.n_kv_heads;
  report->tokens_before += before.most;
  report->tokens_after += after.most;
  for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
    report->bytes_before += before.Of(head) * head_bytes;
    report->bytes_after += after.Of(head) * head_bytes;
  }
  if (view.block_size == 0) return;
  const BlockTables tables_before(view, before);
  const BlockTables tables_after(view, after);
  for (uint32_t table = 0; table < tables_before.n_tables(); ++table) {
    report->blocks_freed +=
        tables_before.Used(table) - tables_after.Used(table);
  }
}

}  // namespace

void ReportLayer(Sequence* sequence, uint32_t l, const ListCounts& before,
                 const ListCounts& after) {
  const PlanLayer& layer = sequence->plan().layer(l);
  for (uint32_t i = 0; i < layer.n_lists; ++i) {
    sequence->list_reports()[layer.first_list + i] = {before.Of(i),
                                                      after.Of(i)};
  }
  const LayerCache& cache = sequence->caches()[l];
  if (cache.owner == l) AddLayer(cache, before, after, &sequence->report());
}

void Eviction::FillReport() const {
  sequence_.BeginReport();
  for (const LayerOutcome& layer : layers_) {
    ReportLayer(&sequence_, layer.layer, slots_.HostTokens(layer.layer),
                AfterOf(layer));
  }
  sequence_.report().evicted = HasWork();
}

// Slots in use by each list afterwards, known to the host.
ListCounts Eviction::AfterOf(const LayerOutcome& layer) const {
  if (!layer.loses) return slots_.HostTokens(layer.layer);
  return slots_.HostNext(layer.layer, layer.n_keep);
}

}  // namespace kvevict
