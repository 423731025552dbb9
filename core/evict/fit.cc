// The stage of an eviction that fits the values that stay to queries.
#include "core/evict/call.h"
#include "core/parts.h"
#include "core/signals/score.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {
namespace {

// Calls run(layers, args) for the layers that are alike.
template <typename Run>
Status ForEachAlike(const EvictCall& call, std::span<uint8_t> scratch,
                    const Run& run) {
  for (size_t i = 0; i < call.active.size();) {
    const std::span<LayerEviction> rest = call.active.subspan(i);
    const size_t n =
        CountAlike(call.plan, Jobs<uint32_t>(rest, &LayerEviction::layer));
    const PlanLayer& first = call.plan.layer(rest.front().layer);
    KV_RETURN_IF_ERROR(
        run({first.geometry, call.policy, first.softmax_scale(),
             Jobs<MoveJob>(rest.first(n), &LayerEviction::move),
             Jobs<ScoreJob>(rest.first(n), &LayerEviction::score), scratch}));
    i += n;
  }
  return Status();
}

// Checks that a layer has biases, of its own.
Status CheckHasBiases(const EvictCall& call, uint32_t l) {
  if (!kHasBiases) return Status();
  const kvevict_view& view = call.views()[l];
  for (uint32_t i = 0; i < view.n_companions; ++i) {
    if (view.companions[i].role != KVEVICT_ROLE_BIAS) continue;
    const LayerCache& cache = call.Cache(l);
    const uint64_t shared = cache.shared_companions & uint64_t{1} << i;
    if (cache.owner != l || shared == 0) return Status();
    return SharesCompanion(call.caches(), l, shared,
                           "each layer has biases of its own");
  }
  return InvalidArgument(
      "views[%u]: companions: none has role bias, which fit bias-values writes",
      call.plan.layer(l).number);
}

}  // namespace

Status CheckCanFit(const EvictCall& call) {
  for (const LayerEviction& layer : call.active) {
    const PlanLayer& of_plan = call.plan.layer(layer.layer);
    const Status status = call.plan.CheckCanRewrite(of_plan);
    if (!status.ok()) return Prefixed(status, "layer %u: ", of_plan.number);
    if (FitsBiases(call.policy)) {
      KV_RETURN_IF_ERROR(CheckHasBiases(call, layer.layer));
    }
  }
  return Status();
}

Status CheckFit(const EvictCall& call) {
  for (const LayerEviction& layer : call.active) {
    if (!TakesReference(call.policy) || layer.score.reference != nullptr) {
      continue;
    }
    return InvalidArgument(
        "layer %u: inputs.reference_queries is NULL, but the policy fits "
        "values to reference %u",
        call.plan.layer(layer.layer).number, call.policy.reference);
  }
  const Backend& backend = call.backend();
  return ForEachAlike(call, {}, [&](const FitArgs& args) {
    return backend.fit_values.check(call.context, call.stream(), args);
  });
}

Status FitKept(const EvictCall& call) {
  const Backend& backend = call.backend();
  return ForEachAlike(
      call, call.Scratch(call.layout.scores), [&](const FitArgs& args) {
        return backend.fit_values(call.context, call.stream(), args);
      });
}

uint32_t CountWeakFits(const EvictCall& call, const LayerOutcome& layer,
                       const ListCounts& before, const ListCounts& after) {
  if (!layer.loses) return 0;
  const PlanLayer& of_plan = call.plan.layer(layer.layer);
  const kvevict_layer_geometry& g = of_plan.geometry;
  const uint64_t n_queries =
      uint64_t{g.n_q_heads / g.n_kv_heads} * FitRows(call.policy);
  uint32_t n = 0;
  for (uint32_t head = 0; head < g.n_kv_heads; ++head) {
    const uint32_t list = of_plan.n_lists == 1 ? 0 : head;
    const bool loses = after.Of(list) < before.Of(list);
    if (loses && n_queries < 2 * uint64_t{after.Of(list)}) ++n;
  }
  return n;
}

}  // namespace kvevict
