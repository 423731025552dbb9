// Rows that stay as rows of other caches.
#include <algorithm>
#include <bit>

#include "core/dtype.h"
#include "core/evict/evict.h"
#include "core/evict/eviction.h"
#include "core/view/overlap.h"
#include "core/view/row_change.h"
#include "core/view/view.h"

namespace kvevict {

// Where the rows of a layer are afterwards.
const kvevict_view& Eviction::TargetOf(const LayerOutcome& layer) const {
  return HasDestinations() ? sequence_.destinations()[layer.layer]
                           : views_[layer.layer];
}

// What its lists keep, as far as is known before scores are.
ListCounts Eviction::MostKept(const LayerOutcome& layer) const {
  if (!layer.loses) return slots_.HostTokens(layer.layer);
  if (CountsByScore(policy_) || SplitsByScore(policy_)) return layer.n_tokens;
  return slots_.HostNext(layer.layer, layer.n_keep);
}

Status Eviction::FindKept(std::span<uint32_t> out) {
  KV_RETURN_IF_ERROR(FindBudgets());
  for (const LayerOutcome& layer : layers_) {
    out[layer.layer] = MostKept(layer).most;
  }
  return Status();
}

Status KeptSlots(Sequence* sequence, std::span<uint32_t> out) {
  const Plan& plan = sequence->plan();
  const SlotTable& slots = sequence->slots();
  if (TouchesNothing(plan.policy()) ||
      !sequence->prompt().IsDue(sequence->logical_length())) {
    KV_RETURN_IF_ERROR(FindCaches(*sequence));
    for (uint32_t l = 0; l < plan.n_layers(); ++l) {
      out[l] = slots.HostTokens(l).most;
    }
    return Status();
  }
  // Recent rows of the views need not stay.
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.destinations = sequence->views().data();
  return Eviction(sequence, options, nullptr, EvictWorkspace(),
                  std::max(1u, slots.Longest()))
      .FindKept(out);
}

Status Eviction::CheckDestinations() {
  if (IsByTable()) {
    return InvalidArgument(
        "destinations with by_table 1: rows go there, or stay in their blocks");
  }
  if (options_.undo != nullptr) {
    return InvalidArgument(
        "destinations with undo: the views keep all rows, and a fork made "
        "before goes on over them");
  }
  if (plan_.merge().Merges()) {
    return InvalidArgument(
        "destinations with merge %d: it would change the rows of the views",
        static_cast<int>(plan_.merge().rule));
  }
  for (const LayerOutcome& layer : layers_) {
    const Status status = CheckDestination(layer);
    if (status.ok()) continue;
    return Prefixed(status, "layer %u: ", plan_.layer(layer.layer).number);
  }
  const std::span<LayerCache> caches = sequence_.both_caches();
  FindShared(caches);
  const uint32_t n = plan_.n_layers();
  for (uint32_t l = 0; l < n; ++l) {
    const LayerCache& cache = caches[n + l];
    if (cache.owner < n) {
      return InvalidArgument("layer %u: destination is the view of layer %u",
                             cache.number, caches[cache.owner].number);
    }
    if (cache.owner != n + caches[l].owner) {
      return InvalidArgument(
          "layer %u: its view is that of layer %u, its destination that of "
          "layer %u: layers with one cache have one destination",
          cache.number, caches[caches[l].owner].number,
          caches[cache.owner].number);
    }
    if (cache.owner == n + l && cache.shared_companions != 0) {
      return InvalidArgument(
          "layer %u: destination.companions[%d] is another cache's too",
          cache.number, std::countr_zero(cache.shared_companions));
    }
  }
  return CheckApart("layers", caches);
}

Status Eviction::CheckDestination(const LayerOutcome& layer) {
  const kvevict_view& view = views_[layer.layer];
  const kvevict_view& destination = TargetOf(layer);
  const bool on_host = context_.backend().on_host;
  const ListCounts written = MostKept(layer);
  KV_RETURN_IF_ERROR(
      kvevict::CheckDestination(view, destination, written, 0, on_host));
  if (plan_.IsRagged() && FirstRecent(destination) != UINT32_MAX) {
    return InvalidArgument(
        "destination: companions: recent rows, but heads keep different "
        "numbers of tokens");
  }
  if (policy_.rotate != 0 &&
      !InfoOf(static_cast<DType>(destination.k.dtype)).can_rotate) {
    return Unsupported("destination: cannot rotate: %s",
                       ReasonText(KVEVICT_REASON_QUANTIZED_KEYS));
  }
  const MoveJob job = MoveOf(layer, KeepLists());
  if (job.change.any()) {
    KV_RETURN_IF_ERROR(context_.backend().requantize.check(
        context_, sequence_.stream(), {Jobs<MoveJob>(job)}));
  }
  LayerCache& cache = sequence_.both_caches()[plan_.n_layers() + layer.layer];
  cache =
      CacheOf(destination, plan_.layer(layer.layer).number, written, on_host);
  cache.is_destination = true;
  return Status();
}

// To where it goes, or down where it is.
MoveJob Eviction::MoveOf(const LayerOutcome& layer,
                         const KeepLists& keep) const {
  const uint32_t l = layer.layer;
  MoveJob job;
  job.view = &views_[l];
  job.tokens = slots_.DeviceTokens(l);
  job.keep = keep;
  if (HasDestinations()) {
    job.destination = &TargetOf(layer);
    job.change = ChangeOf(views_[l], TargetOf(layer));
    return job;
  }
  job.shared_companions = Cache(l).shared_companions;
  job.merge = plan_.merge();
  job.StayWhereRecent();
  return job;
}

// Layers with rows that move: those that lose tokens, and if there are destinations
// behind them all others.
std::span<LayerEviction> Eviction::Moving() const {
  if (!HasDestinations()) return active_;
  const std::span<LayerEviction> all = sequence_.evictions();
  size_t n = active_.size();
  for (const LayerOutcome& layer : layers_) {
    if (layer.loses || layer.owner != layer.layer || layer.n_tokens == 0) {
      continue;
    }
    const ListCounts tokens = slots_.DeviceTokens(layer.layer);
    all[n] = LayerEviction(layer);
    all[n++].move = MoveOf(
        layer,
        KeepLists::Packed(nullptr, plan_.layer(layer.layer).n_lists, tokens));
  }
  return all.first(n);
}

}  // namespace kvevict
