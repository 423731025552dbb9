// How many slots each layer keeps, given budgets and what must stay.
#include <algorithm>
#include <optional>

#include "core/evict/call.h"
#include "core/number_text.h"
#include "core/view/view.h"

namespace kvevict {

Status FindCaches(const EvictCall& call) {
  const std::span<const kvevict_view> views = call.views();
  const Plan& plan = call.plan;
  const bool on_host = plan.context().backend().on_host;
  const std::span<LayerCache> caches = call.caches();
  for (uint32_t l = 0; l < views.size(); ++l) {
    const PlanLayer& layer = plan.layer(l);
    const ListCounts tokens = call.slots.HostTokens(l);
    Status status = ValidateView(views[l], tokens, on_host);
    if (status.ok()) status = MatchGeometry(views[l], layer.geometry);
    if (status.ok()) status = CheckComplete(views[l], layer.geometry);
    if (!status.ok()) return Prefixed(status, "views[%u]: ", layer.number);
    caches[l] = CacheOf(views[l], layer.number, tokens, on_host);
  }
  FindShared(caches);
  return Status();
}

uint32_t EvictCall::SinkOf(uint32_t layer) const {
  if (!IsPromptPinned(policy)) return policy.sink.count;
  return std::max(policy.sink.count, sequence.prompt().SlotsOf(layer));
}

namespace {

// The protected positions that every layer needs room for if the split is by
// dynamics, or layers compete.
uint32_t n_protected(const EvictCall& call) {
  return MeasureOf(call.policy) == Measure::kDynamics ||
                 LayersCompete(call.policy)
             ? static_cast<uint32_t>(call.forced.protect.size())
             : 0;
}

// Measures of the ends need both windows side by side between sinks and
// recents.
bool CanBeMeasured(const EvictCall& call, const LayerOutcome& layer) {
  const Policy& policy = call.policy;
  return MeasureOf(policy) != Measure::kEnds ||
         uint64_t{policy.sink.count} + policy.recent.count +
                 2 * uint64_t{policy.window.count} <=
             layer.n_tokens;
}

// True if the layer's budget is a ratio of the context.
bool GrowsWithContext(const EvictCall& call, uint32_t layer) {
  return !call.plan.HasHeadBudgets() &&
         !CountsTokens(call.plan.PolicyOf(layer));
}

// The context that a budget is taken from. A budget of tokens that chunks share
// is limited by the slots held. A ratio applies to each chunk, so to the
// context.
uint32_t OfChunks(const Policy& policy, uint32_t n_context, uint32_t n_held) {
  const bool counts = HasChunks(policy) && policy.budget > 1.0;
  return counts ? std::min(n_context, n_held) : n_context;
}

}  // namespace

uint32_t ContextOf(const EvictCall& call, const LayerOutcome& layer) {
  const Prompt& prompt = call.sequence.prompt();
  uint32_t n_seen = call.sequence.logical_length();
  uint32_t n_held = layer.n_tokens;
  if (IsPromptBeside(call.policy)) {
    n_seen = prompt.Behind(n_seen);
    n_held -= std::min(n_held, prompt.SlotsOf(layer.layer));
  }
  const uint32_t n = call.plan.ContextOf(n_seen, n_held);
  return call.plan.HasLayerBudgets() ? n
                                     : OfChunks(call.policy, n, call.n_tokens);
}

namespace {

Status FindLayers(EvictCall& call) {
  KV_RETURN_IF_ERROR(FindCaches(call));
  for (uint32_t l = 0; l < call.plan.n_layers(); ++l) {
    call.layers[l].layer = l;
    call.layers[l].owner = call.Cache(l).owner;
    call.layers[l].n_tokens = call.slots.HostTokens(l).most;
  }
  return Status();
}

// The budget of each layer. For a split by score it is the least or the whole
// context.
Status FindBudgetsOf(const EvictCall& call, uint32_t n_context,
                     std::span<uint32_t> budgets) {
  if (!SplitsByScore(call.policy))
    return call.plan.LayerBudgets(n_context, budgets);
  uint32_t least = 0;
  KV_RETURN_IF_ERROR(
      LeastBudget(call.policy, n_context, n_protected(call), &least));
  for (const LayerOutcome& layer : call.layers) {
    budgets[layer.layer] = CanBeMeasured(call, layer) ? least : n_context;
  }
  return Status();
}

// True if the layer loses nothing because of the margin, whatever its budget.
bool IsWithinMargin(const EvictCall& call, uint32_t n_context,
                    const LayerOutcome& layer) {
  const Policy policy = call.plan.PolicyOf(layer.layer);
  return layer.n_tokens <=
         uint64_t{BudgetTokens(policy, n_context)} + policy.margin;
}

// Each layer has its own policy, so one may have no room yet while others have.
Status FindOwnBudgets(const EvictCall& call, uint32_t n_context,
                      std::span<uint32_t> budgets) {
  for (const LayerOutcome& layer : call.layers) {
    uint32_t& budget = budgets[layer.layer];
    const uint32_t n = OfChunks(call.plan.PolicyOf(layer.layer), n_context,
                                std::max(1u, layer.n_tokens));
    KeptErrorMessage message;
    Status status = call.plan.LayerBudget(layer.layer, n, &budget);
    if (status.ok()) continue;
    if (!IsWithinMargin(call, n, layer)) {
      message.Drop();
      return status;
    }
    budget = n;
  }
  return Status();
}

bool LacksRoomIn(const EvictCall& call, uint32_t n_context,
                 const LayerOutcome& layer) {
  if (n_context == 0) return false;
  if (call.plan.HasHeadBudgets()) {
    return layer.loses && LacksQueries(call.policy, n_context);
  }
  return LacksRoom(call.plan.PolicyOf(layer.layer), n_context);
}

void LeaveAlone(const EvictCall& call, LayerOutcome* layer) {
  layer->n_keep = layer->n_tokens;
  layer->n_rescued = 0;
  layer->loses = false;
  if (call.plan.IsRagged()) call.slots.LeaveCounts(layer->layer);
}

// The slots, in whole blocks, that are rescued from those to be evicted.
uint32_t RescuedOf(const EvictCall& call, const LayerOutcome& layer) {
  const uint64_t n = RescuedTokens(call.policy);
  return layer.n_tokens - layer.n_keep < n ? 0 : static_cast<uint32_t>(n);
}

// The slots that must stay have to fit the budget in every list.
Status CheckForcedFit(const EvictCall& call, const LayerOutcome& layer) {
  const ListCounts tokens = call.slots.HostTokens(layer.layer);
  const ListCounts keep =
      call.slots.HostNext(layer.layer, layer.n_keep - layer.n_rescued);
  const uint32_t n_sink = call.SinkOf(layer.layer);
  for (uint32_t list = 0; list < call.plan.layer(layer.layer).n_lists; ++list) {
    const uint32_t n_tokens = tokens.Of(list);
    const uint32_t n_keep = keep.Of(list);
    if (n_keep == n_tokens) continue;
    const SlotBlocks blocks = BlocksOf(call.policy);
    ForcedSlots forced(blocks, n_sink, call.forced.n_recent, n_tokens);
    // Usually all protected positions fit. Which of them are held does not
    // matter then, and finding out may wait for the device.
    if (forced.ends() + call.forced.protect.size() * blocks.size <= n_keep) {
      continue;
    }
    SlotPositions positions;
    KV_RETURN_IF_ERROR(call.sequence.HostPositions(layer.layer, &positions));
    for (int32_t position : call.forced.protect) {
      forced.Add(positions.SlotOf(list, position, n_tokens));
    }
    if (forced.count() > n_keep) {
      return InvalidArgument(
          "layer %u: budget %u < %s %u + recent %u + %llu protected "
          "positions%s",
          call.plan.layer(layer.layer).number, n_keep,
          n_sink > call.policy.sink.count ? "prompt" : "sink", n_sink,
          call.forced.n_recent, forced.n_added(), BlockWords(blocks).text);
    }
  }
  return Status();
}

// The slots that must stay have to fit the layer's budget. A layer whose budget
// grows with the context is left alone until they do.
Status FindRoom(const EvictCall& call, LayerOutcome* layer) {
  KeptErrorMessage message;
  const Status status = HasChunks(call.policy) ? ShareOverChunks(call, *layer)
                                               : CheckForcedFit(call, *layer);
  layer->lacks_room = status.code() == KVEVICT_ERROR_INVALID_ARGUMENT &&
                      GrowsWithContext(call, layer->layer);
  if (layer->lacks_room) return Status();
  message.Drop();
  return status;
}

// Drops positions within both ends, so that no slot that must stay counts
// twice.
std::span<const int32_t> BetweenEnds(const EvictCall& call,
                                     std::span<const int32_t> positions) {
  const int64_t n_seen = call.sequence.logical_length();
  const auto begin = std::lower_bound(positions.begin(), positions.end(),
                                      int64_t{call.forced.n_sink});
  const auto end =
      std::lower_bound(begin, positions.end(), n_seen - call.forced.n_recent);
  return {begin, end};
}

void FindForced(EvictCall& call) {
  call.forced.n_sink = call.policy.sink.count;
  uint32_t n_context = 1;
  for (const LayerOutcome& layer : call.layers) {
    n_context = std::max(n_context, ContextOf(call, layer));
  }
  call.forced.n_recent = ForcedRecentTokens(InTokens(call.policy, n_context));
  for (const LayerOutcome& layer : call.layers) {
    if (call.HasDestinations()) break;
    call.forced.n_recent =
        std::max(call.forced.n_recent,
                 RecentOf(call.views()[layer.layer], layer.n_tokens));
  }
  call.forced.protect = BetweenEnds(
      call,
      {call.options.protected_positions, call.options.protected_positions_len});
}

Status FindBudgetsIn(const EvictCall& call, uint32_t n_context,
                     std::span<uint32_t> budgets, bool* has_room) {
  *has_room = true;
  if (n_context == 0) {
    std::fill(budgets.begin(), budgets.end(), 0);
    return Status();
  }
  if (call.plan.HasLayerBudgets())
    return FindOwnBudgets(call, n_context, budgets);
  KeptErrorMessage message;
  Status status = FindBudgetsOf(call, n_context, budgets);
  if (status.ok()) return status;
  *has_room = CountsTokens(call.policy);
  for (const LayerOutcome& layer : call.layers) {
    if (!*has_room || IsWithinMargin(call, n_context, layer)) continue;
    message.Drop();
    return status;
  }
  std::fill(budgets.begin(), budgets.end(), n_context);
  return Status();
}

// A layer that competes loses tokens if all layers together do. Which layers
// these are is known later.
void Compete(EvictCall& call, bool loses, LayerOutcome* layer) {
  layer->loses = loses && layer->n_tokens > 0;
  layer->budget =
      layer->loses ? BudgetTokens(call.policy, ContextOf(call, *layer)) : 0;
  if (call.plan.IsRagged() && !layer->loses) {
    call.slots.LeaveCounts(layer->layer);
  }
}

Status CheckBudgets(EvictCall& call) {
  const std::span<uint32_t> budgets = call.budgets();
  FindForced(call);
  const bool competes = LayersCompete(call.policy);
  const bool all_lose = competes && FindContest(call);
  std::optional<uint32_t> n_context;  // the context of `budgets`
  bool has_room = true;
  for (LayerOutcome& layer : call.layers) {
    if (const uint32_t n = ContextOf(call, layer); n_context != n) {
      KV_RETURN_IF_ERROR(FindBudgetsIn(call, n, budgets, &has_room));
      n_context = n;
    }
    FindCounts(call, budgets[layer.owner], &layer);
    if (competes) Compete(call, all_lose, &layer);
    layer.lacks_room = !has_room || LacksRoomIn(call, *n_context, layer);
    if (layer.owner != layer.layer) {  // owners come first
      layer.lacks_room = call.layers[layer.owner].lacks_room;
    } else if (layer.loses && !layer.lacks_room) {
      KV_RETURN_IF_ERROR(FindRoom(call, &layer));
    }
    if (layer.lacks_room) LeaveAlone(call, &layer);
    if (competes) layer.n_keep = layer.n_tokens;
    if (!layer.loses || layer.owner != layer.layer) continue;
    call.active = {call.active.data(), call.active.size() + 1};
    call.active.back() = LayerEviction(layer);
  }
  if (!call.OneList()) return Status();
  for (const LayerOutcome& layer : call.layers) {
    if (layer.n_tokens != call.layers[0].n_tokens) {
      return InvalidArgument(
          "scope model: layer %u holds %u tokens, but layer %u holds %u",
          call.plan.layer(layer.layer).number, layer.n_tokens,
          call.plan.layer(0).number, call.layers[0].n_tokens);
    }
  }
  return Status();
}

}  // namespace

void LeaveOutWhole(EvictCall& call) {
  size_t n_active = 0;
  for (LayerEviction layer : call.active) {
    if (layer.loses) {
      call.active[n_active++] = layer;
    } else if (call.plan.IsRagged()) {
      call.slots.LeaveCounts(layer.layer);
    }
    call.layers[layer.layer] = layer;
  }
  call.active = call.active.first(n_active);
  for (LayerOutcome& layer : call.layers) {
    if (layer.owner == layer.layer) continue;
    if (call.plan.IsRagged()) call.slots.CopyCounts(layer.owner, layer.layer);
    layer.n_keep = call.layers[layer.owner].n_keep;
    layer.loses = call.layers[layer.owner].loses;
  }
}

double EvictCall::ShareOf(const LayerOutcome& layer) const {
  const Policy of_layer = plan.PolicyOf(layer.layer);
  if (!CountsTokens(of_layer)) return of_layer.budget;
  return of_layer.budget / std::max(1u, ContextOf(*this, layer));
}

Status FindWhole(EvictCall& call) {
  call.layers = call.outcomes();
  call.active = call.evictions().first(0);
  std::fill(call.layers.begin(), call.layers.end(), LayerOutcome());
  KV_RETURN_IF_ERROR(FindLayers(call));
  for (LayerOutcome& layer : call.layers) layer.n_keep = layer.n_tokens;
  return Status();
}

Status FindBudgets(EvictCall& call) {
  KV_RETURN_IF_ERROR(FindWhole(call));
  return CheckBudgets(call);
}

namespace {

// The slots that the n_lists lists of a layer keep together, if they compete.
uint64_t Together(const EvictCall& call, const LayerOutcome& layer,
                  size_t n_lists) {
  const Policy policy = call.plan.PolicyOf(layer.layer);
  if (policy.heads != HeadRule::kAdaptive ||
      policy.split != LayerSplit::kUniform) {
    return n_lists * layer.budget;
  }
  return BudgetTogether(policy, ContextOf(call, layer), n_lists);
}

}  // namespace

void FindCounts(const EvictCall& call, uint32_t budget, LayerOutcome* layer) {
  const uint32_t l = layer->layer;
  const SlotBlocks blocks = BlocksOf(call.policy);
  const uint64_t margin = call.policy.margin;
  if (IsPromptBeside(call.policy)) budget += call.sequence.prompt().SlotsOf(l);
  layer->n_keep = blocks.Within(budget, layer->n_tokens);
  layer->n_rescued = RescuedOf(call, *layer);
  layer->n_keep += layer->n_rescued;
  layer->loses = layer->n_keep + margin < layer->n_tokens;
  if (!call.plan.IsRagged()) return;
  if (layer->owner != l) {  // owners come first
    call.slots.CopyCounts(layer->owner, l);
    layer->n_keep = call.layers[layer->owner].n_keep;
    layer->loses = call.layers[layer->owner].loses;
    return;
  }
  const ListCounts tokens = call.slots.HostTokens(l);
  const std::span<uint32_t> next = call.slots.NextCounts(l);
  uint64_t n_held = 0;
  layer->n_keep = 0;
  layer->loses = false;
  for (uint32_t list = 0; list < next.size(); ++list) {
    const uint32_t of_list =
        call.plan.HasHeadBudgets() ? call.plan.HeadBudgets(l)[list] : budget;
    next[list] = blocks.Within(of_list, tokens.Of(list));
    layer->n_keep = std::max(layer->n_keep, next[list]);
    layer->loses = layer->loses || next[list] + margin < tokens.Of(list);
    n_held += tokens.Of(list);
  }
  // `next` is only a bound until scores decide
  if (CountsByScore(call.policy)) {
    const uint64_t n_forced =
        uint64_t{call.forced.n_sink} + call.forced.n_recent;
    layer->budget = budget;
    layer->together = Together(call, *layer, next.size());
    layer->loses = HeadsCompete(call.policy)
                       ? n_held > layer->together + margin * next.size()
                       : layer->n_tokens > n_forced;
    layer->n_keep = static_cast<uint32_t>(std::min<uint64_t>(
        HeadsCompete(call.policy) ? layer->together : budget, layer->n_tokens));
  }
  if (!layer->loses) call.slots.LeaveCounts(l);
}

ListCounts MostKept(const EvictCall& call, const LayerOutcome& layer) {
  if (!layer.loses) return call.slots.HostTokens(layer.layer);
  if (CountsByScore(call.policy) || SplitsByScore(call.policy))
    return layer.n_tokens;
  return call.slots.HostNext(layer.layer, layer.n_keep);
}

Status ShareBudgets(EvictCall& call) {
  if (LayersCompete(call.policy)) return ShareWinners(call);
  const Stream stream = call.stream();
  const std::span<LayerMeasure> read = call.read_measures();
  const std::span<LayerMeasure> measures = call.measures();
  KV_RETURN_IF_ERROR(call.backend().read(
      call.context, stream, call.Part<LayerMeasure>(call.layout.measures),
      call.active.size() * sizeof(LayerMeasure), read.data()));
  std::fill(measures.begin(), measures.end(), LayerMeasure());
  for (size_t i = 0; i < call.active.size(); ++i) {
    measures[call.active[i].layer] = read[i];
  }
  for (const LayerOutcome& layer : call.layers) {  // owners come first
    measures[layer.layer] = measures[layer.owner];
  }
  const std::span<uint32_t> budgets = call.budgets();
  uint32_t n_context = 0;  // the context of `budgets`
  for (LayerEviction& layer : call.active) {
    if (const uint32_t n = ContextOf(call, layer); n_context != n) {
      n_context = n;
      KV_RETURN_IF_ERROR(
          LayerBudgets(call.policy, n, measures, n_protected(call), budgets));
    }
    FindCounts(call, budgets[layer.layer], &layer);
  }
  LeaveOutWhole(call);
  return call.plan.IsRagged() ? call.slots.SendNextCounts(stream) : Status();
}

Status ReadCounts(EvictCall& call) {
  KV_RETURN_IF_ERROR(call.slots.ReadNextCounts(call.stream()));
  // If heads compete, the margin was applied to what they hold together.
  const uint64_t margin = HeadsCompete(call.policy) ? 0 : call.policy.margin;
  for (LayerEviction& layer : call.active) {
    const std::span<const uint32_t> next = call.slots.NextCounts(layer.layer);
    const ListCounts tokens = call.slots.HostTokens(layer.layer);
    layer.n_keep = *std::max_element(next.begin(), next.end());
    layer.keep.count.most = layer.move.keep.count.most = layer.n_keep;
    layer.loses = false;
    for (uint32_t list = 0; list < next.size(); ++list) {
      layer.loses = layer.loses || next[list] + margin < tokens.Of(list);
    }
  }
  LeaveOutWhole(call);
  return call.slots.SendNextCounts(call.stream());
}

}  // namespace kvevict
