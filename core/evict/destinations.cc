// Evictions that copy the rows that stay into other caches.
#include <algorithm>
#include <bit>

#include "core/dtype.h"
#include "core/evict/call.h"
#include "core/evict/evict.h"
#include "core/view/overlap.h"
#include "core/view/row_change.h"
#include "core/view/view.h"

namespace kvevict {

Status KeptSlots(EvictCall* call, std::span<uint32_t> out) {
  const Plan& plan = call->plan;
  const Sequence& sequence = call->sequence;
  if (TouchesNothing(plan.policy()) ||
      !sequence.prompt().IsDue(sequence.logical_length())) {
    KV_RETURN_IF_ERROR(FindCaches(*call));
    for (uint32_t l = 0; l < plan.n_layers(); ++l) {
      out[l] = call->slots.HostTokens(l).most;
    }
    return Status();
  }
  // Destinations are set because kept_slots does not count recent rows of the
  // views.
  kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
  options.destinations = call->views().data();
  call->Begin(options, nullptr, EvictWorkspace(),
              std::max(1u, call->slots.Longest()));
  const Status status = FindBudgets(*call);
  call->End();
  if (!status.ok()) return status;
  for (const LayerOutcome& layer : call->layers) {
    out[layer.layer] = MostKept(*call, layer).most;
  }
  return Status();
}

namespace {

Status CheckOne(EvictCall& call, const LayerOutcome& layer) {
  const kvevict_view& view = call.views()[layer.layer];
  const kvevict_view& destination = call.TargetOf(layer);
  const bool on_host = call.backend().on_host;
  const ListCounts written = MostKept(call, layer);
  KV_RETURN_IF_ERROR(CheckDestination(view, destination, written, 0, on_host));
  if (call.plan.IsRagged() && FirstRecent(destination) != UINT32_MAX) {
    return InvalidArgument(
        "destination: companions: there are recent rows, but heads keep "
        "different numbers of tokens");
  }
  if (call.policy.rotate != 0 &&
      !InfoOf(static_cast<DType>(destination.k.dtype)).can_rotate) {
    return Unsupported("destination: cannot rotate: %s",
                       ReasonText(KVEVICT_REASON_QUANTIZED_KEYS));
  }
  const MoveJob job = MoveOf(call, layer, KeepLists());
  if (job.change.any()) {
    KV_RETURN_IF_ERROR(call.backend().requantize.check(
        call.context, call.stream(), {Jobs<MoveJob>(job)}));
  }
  LayerCache& cache = call.both_caches()[call.plan.n_layers() + layer.layer];
  cache = CacheOf(destination, call.plan.layer(layer.layer).number, written,
                  on_host);
  cache.is_destination = true;
  return Status();
}

}  // namespace

Status CheckDestinations(EvictCall& call) {
  if (call.IsByTable()) {
    return InvalidArgument(
        "destinations with by_table 1: rows either go there or stay in their "
        "blocks");
  }
  if (call.options.undo != nullptr) {
    return InvalidArgument(
        "destinations with undo: the views keep all rows, so a fork made "
        "before can go on with them");
  }
  if (call.plan.merge().Merges()) {
    return InvalidArgument(
        "destinations with merge %d: it would change the rows of the views",
        static_cast<int>(call.plan.merge().rule));
  }
  if (FitsValues(call.policy)) {
    return InvalidArgument(
        "destinations with fit=%s: it would change the rows of the views",
        FitsBiases(call.policy) ? "bias-values" : "values");
  }
  for (const LayerOutcome& layer : call.layers) {
    const Status status = CheckOne(call, layer);
    if (status.ok()) continue;
    return Prefixed(status, "layer %u: ", call.plan.layer(layer.layer).number);
  }
  const std::span<LayerCache> caches = call.both_caches();
  FindShared(caches);
  const uint32_t n = call.plan.n_layers();
  for (uint32_t l = 0; l < n; ++l) {
    const LayerCache& cache = caches[n + l];
    if (cache.owner < n) {
      return InvalidArgument("layer %u: destination is the view of layer %u",
                             cache.number, caches[cache.owner].number);
    }
    if (cache.owner != n + caches[l].owner) {
      return InvalidArgument(
          "layer %u: its view is that of layer %u, but its destination is that "
          "of layer %u: layers with one cache need one destination",
          cache.number, caches[caches[l].owner].number,
          caches[cache.owner].number);
    }
    if (cache.owner == n + l && cache.shared_companions != 0) {
      return InvalidArgument(
          "layer %u: destination.companions[%d] is also another cache's",
          cache.number, std::countr_zero(cache.shared_companions));
    }
  }
  return CheckApart("layers", caches);
}

}  // namespace kvevict
