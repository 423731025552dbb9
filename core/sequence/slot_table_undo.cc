// Undoes an eviction. The positions before it are still in the array that the
// next one writes.
#include <algorithm>

#include "core/sequence/slot_table.h"

namespace kvevict {

void SlotTable::Remember(std::span<const LayerOutcome> layers) {
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    const LayerOutcome& layer = layers[l];
    LayerBefore& before = before_[l];
    before.slots = layers_[l];
    before.owner = layer.owner;
    before.n_evicted = 0;
    if (!layer.loses) continue;
    const ListCounts held = HostTokens(l);
    const ListCounts kept = HostNext(l, layer.n_keep);
    for (uint32_t list = 0; list < n_lists(l); ++list) {
      before.n_evicted =
          std::max(before.n_evicted, held.Of(list) - kept.Of(list));
    }
  }
  std::copy(counts_[now_].begin(), counts_[now_].end(), counts_before_.begin());
  n_listed_before_ = n_listed_;
  logical_before_ = logical_;
  remembers_ = true;
}

void SlotTable::Exchange() {
  // Evictions that did nothing have written to this array.
  std::copy(counts_before_.begin(), counts_before_.end(),
            counts_[1 - now_].begin());
  std::copy(counts_[now_].begin(), counts_[now_].end(), counts_before_.begin());
  now_ = 1 - now_;
  std::swap(n_listed_, n_listed_before_);
  for (uint32_t l = 0; l < layers_.size(); ++l) {
    LayerSlots& slots = layers_[l];
    std::swap(slots, before_[l].slots);
    slots.stored = slots.n_kept + (logical_ - slots.tail_position);
  }
  host_kept_is_current_ = false;
  CountStored();
}

Status SlotTable::SendExchanged(Stream stream) {
  if (plan_.IsRagged()) {
    const Array<uint32_t>& counts = counts_[now_];
    KV_RETURN_IF_ERROR(plan_.context().backend().set_counts(
        plan_.context(), stream,
        {device_counts_[now_].data(), {counts.data(), counts.size()}}));
  }
  return SendLengths(stream, logical_);
}

}  // namespace kvevict
