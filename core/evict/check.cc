// What an eviction checks before the first byte moves.
#include <algorithm>
#include <bit>
#include <optional>

#include "core/evict/eviction.h"
#include "core/number_text.h"
#include "core/signals/score.h"
#include "core/signals/signal_inputs.h"
#include "core/view/overlap.h"
#include "core/view/view.h"

namespace kvevict {

Status FindCaches(const Sequence& sequence) {
  const std::span<const kvevict_view> views = sequence.views();
  const Plan& plan = sequence.plan();
  const bool on_host = plan.context().backend().on_host;
  const std::span<LayerCache> caches = sequence.caches();
  for (uint32_t l = 0; l < views.size(); ++l) {
    const PlanLayer& layer = plan.layer(l);
    const ListCounts tokens = sequence.slots().HostTokens(l);
    Status status = ValidateView(views[l], tokens, on_host);
    if (status.ok()) status = MatchGeometry(views[l], layer.geometry);
    if (status.ok()) status = CheckComplete(views[l], layer.geometry);
    if (!status.ok()) return Prefixed(status, "views[%u]: ", layer.number);
    caches[l] = CacheOf(views[l], layer.number, tokens, on_host);
  }
  FindShared(caches);
  return Status();
}

Status Eviction::FindBudgets() {
  KV_RETURN_IF_ERROR(FindWhole());
  return CheckBudgets();
}

Status Eviction::Check() {
  KV_RETURN_IF_ERROR(is_due_ ? FindBudgets() : FindWhole());
  if (HasDestinations()) KV_RETURN_IF_ERROR(CheckDestinations());
  if (!is_due_) return Status();
  if (IsByTable()) KV_RETURN_IF_ERROR(CheckTables());
  KV_RETURN_IF_ERROR(CheckSignal());
  if (!LosesTokens()) return Status();
  if (HasChunks(policy_)) KV_RETURN_IF_ERROR(CheckMoveByRow("chunk"));
  if (plan_.IsRagged()) KV_RETURN_IF_ERROR(CheckNoneRecent());
  if (plan_.merge().Merges()) KV_RETURN_IF_ERROR(CheckMerge());
  if (policy_.rotate != 0) KV_RETURN_IF_ERROR(CheckRotate());
  if (!HasDestinations()) KV_RETURN_IF_ERROR(CheckRegroup());
  if (options_.undo != nullptr) KV_RETURN_IF_ERROR(CheckUndo());
  KV_RETURN_IF_ERROR(CheckSharing());
  return context_.backend().check_capture(context_, sequence_.stream(), policy_,
                                          !ranges_.empty(),
                                          plan_.ReportsMass());
}

// Where no layer loses tokens.
Status Eviction::FindWhole() {
  layers_ = sequence_.outcomes();
  active_ = sequence_.evictions().first(0);
  std::fill(layers_.begin(), layers_.end(), LayerOutcome());
  KV_RETURN_IF_ERROR(FindLayers());
  for (LayerOutcome& layer : layers_) layer.n_keep = layer.n_tokens;
  return Status();
}

Status Eviction::FindLayers() {
  KV_RETURN_IF_ERROR(FindCaches(sequence_));
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    layers_[l].layer = l;
    layers_[l].owner = Cache(l).owner;
    layers_[l].n_tokens = slots_.HostTokens(l).most;
  }
  return Status();
}

// What moves must move once, by one list, and be nobody else's.
Status Eviction::CheckSharing() const {
  if (HasDestinations()) return Status();
  for (const LayerEviction& layer : active_) {
    if (!WritesViews()) break;
    Status status = CheckNotShared(views_[layer.layer], 0);
    if (status.ok()) continue;
    return Prefixed(status, "views[%u]: ", plan_.layer(layer.layer).number);
  }
  KV_RETURN_IF_ERROR(CheckApart("views", sequence_.caches()));
  if (plan_.LayersKeepAlike()) return Status();
  for (uint32_t l = 0; l < plan_.n_layers(); ++l) {
    const uint64_t shared = Cache(l).shared_companions;
    if (Cache(l).owner != l || shared == 0) continue;
    return InvalidArgument(
        "views[%u].companions[%d] is a plane of an earlier layer too: layers "
        "that keep different tokens cannot share it",
        plan_.layer(l).number, std::countr_zero(shared));
  }
  return Status();
}

Status Eviction::CheckBudgets() {
  const std::span<uint32_t> budgets = sequence_.budgets();
  FindForced();
  std::optional<uint32_t> n_context;  // of which budgets are
  bool has_room = true;
  for (LayerOutcome& layer : layers_) {
    if (const uint32_t n = ContextOf(layer); n_context != n) {
      KV_RETURN_IF_ERROR(FindBudgets(n, budgets, &has_room));
      n_context = n;
    }
    FindCounts(budgets[layer.owner], &layer);
    layer.lacks_room = !has_room || LacksRoomIn(*n_context, layer);
    if (layer.owner != layer.layer) {  // owners come first
      layer.lacks_room = layers_[layer.owner].lacks_room;
    } else if (layer.loses && !layer.lacks_room) {
      KV_RETURN_IF_ERROR(FindRoom(&layer));
    }
    if (layer.lacks_room) LeaveAlone(&layer);
    if (!layer.loses || layer.owner != layer.layer) continue;
    active_ = {active_.data(), active_.size() + 1};
    active_.back() = LayerEviction(layer);
  }
  if (!OneList()) return Status();
  for (const LayerOutcome& layer : layers_) {
    if (layer.n_tokens != layers_[0].n_tokens) {
      return InvalidArgument(
          "scope model: layer %u holds %u tokens, layer %u %u",
          plan_.layer(layer.layer).number, layer.n_tokens,
          plan_.layer(0).number, layers_[0].n_tokens);
    }
  }
  return Status();
}

Status Eviction::FindBudgets(uint32_t n_context, std::span<uint32_t> budgets,
                             bool* has_room) const {
  *has_room = true;
  if (n_context == 0) {
    std::fill(budgets.begin(), budgets.end(), 0);
    return Status();
  }
  if (plan_.HasLayerBudgets()) return FindOwnBudgets(n_context, budgets);
  KeptErrorMessage message;
  Status status = FindBudgetsOf(n_context, budgets);
  if (status.ok()) return status;
  *has_room = CountsTokens(policy_);
  for (const LayerOutcome& layer : layers_) {
    if (!*has_room || IsWithinMargin(n_context, layer)) continue;
    message.Drop();
    return status;
  }
  std::fill(budgets.begin(), budgets.end(), n_context);
  return Status();
}

// Of each layer, or what is known of it before scores decide.
Status Eviction::FindBudgetsOf(uint32_t n_context,
                               std::span<uint32_t> budgets) const {
  if (!SplitsByScore(policy_)) return plan_.LayerBudgets(n_context, budgets);
  uint32_t least = 0;
  KV_RETURN_IF_ERROR(LeastBudget(policy_, n_context, n_protected(), &least));
  for (const LayerOutcome& layer : layers_) {
    budgets[layer.layer] = CanBeMeasured(layer) ? least : n_context;
  }
  return Status();
}

// One may have no room yet where others have.
Status Eviction::FindOwnBudgets(uint32_t n_context,
                                std::span<uint32_t> budgets) const {
  for (const LayerOutcome& layer : layers_) {
    uint32_t& budget = budgets[layer.layer];
    const uint32_t n = OfChunks(plan_.PolicyOf(layer.layer), n_context,
                                std::max(1u, layer.n_tokens));
    KeptErrorMessage message;
    Status status = plan_.LayerBudget(layer.layer, n, &budget);
    if (status.ok()) continue;
    if (!IsWithinMargin(n, layer)) {
      message.Drop();
      return status;
    }
    budget = n;
  }
  return Status();
}

bool Eviction::LacksRoomIn(uint32_t n_context,
                           const LayerOutcome& layer) const {
  if (n_context == 0) return false;
  if (plan_.HasHeadBudgets()) {
    return layer.loses && LacksQueries(policy_, n_context);
  }
  return LacksRoom(plan_.PolicyOf(layer.layer), n_context);
}

// Nothing goes of the layer then, whether or not its budget has room.
bool Eviction::IsWithinMargin(uint32_t n_context,
                              const LayerOutcome& layer) const {
  const Policy policy = plan_.PolicyOf(layer.layer);
  return layer.n_tokens <=
         uint64_t{BudgetTokens(policy, n_context)} + policy.margin;
}

// What must stay of a layer that would lose tokens has to fit its budget. One that
// grows with the context leaves the layer alone until then.
Status Eviction::FindRoom(LayerOutcome* layer) const {
  KeptErrorMessage message;
  const Status status =
      HasChunks(policy_) ? ShareOverChunks(*layer) : CheckForcedFit(*layer);
  layer->lacks_room = status.code() == KVEVICT_ERROR_INVALID_ARGUMENT &&
                      GrowsWithContext(layer->layer);
  if (layer->lacks_room) return Status();
  message.Drop();
  return status;
}

void Eviction::LeaveAlone(LayerOutcome* layer) const {
  layer->n_keep = layer->n_tokens;
  layer->n_rescued = 0;
  layer->loses = false;
  if (plan_.IsRagged()) slots_.LeaveCounts(layer->layer);
}

// How many slots the layer's lists keep, and whether that is less than they hold.
void Eviction::FindCounts(uint32_t budget, LayerOutcome* layer) const {
  const uint32_t l = layer->layer;
  const SlotBlocks blocks = BlocksOf(policy_);
  const uint64_t margin = policy_.margin;
  if (IsPromptBeside(policy_)) budget += sequence_.prompt().SlotsOf(l);
  layer->n_keep = blocks.Within(budget, layer->n_tokens);
  layer->n_rescued = RescuedOf(*layer);
  layer->n_keep += layer->n_rescued;
  layer->loses = layer->n_keep + margin < layer->n_tokens;
  if (!plan_.IsRagged()) return;
  if (layer->owner != l) {  // owners come first
    slots_.CopyCounts(layer->owner, l);
    layer->n_keep = layers_[layer->owner].n_keep;
    layer->loses = layers_[layer->owner].loses;
    return;
  }
  const ListCounts tokens = slots_.HostTokens(l);
  const std::span<uint32_t> next = slots_.NextCounts(l);
  uint64_t n_held = 0;
  layer->n_keep = 0;
  layer->loses = false;
  for (uint32_t list = 0; list < next.size(); ++list) {
    const uint32_t of_list =
        plan_.HasHeadBudgets() ? plan_.HeadBudgets(l)[list] : budget;
    next[list] = blocks.Within(of_list, tokens.Of(list));
    layer->n_keep = std::max(layer->n_keep, next[list]);
    layer->loses = layer->loses || next[list] + margin < tokens.Of(list);
    n_held += tokens.Of(list);
  }
  if (CountsByScore(policy_)) {  // `next` is what is known before
    const uint64_t n_forced = uint64_t{forced_.n_sink} + forced_.n_recent;
    layer->loses = HeadsCompete(policy_)
                       ? n_held > (budget + margin) * next.size()
                       : layer->n_tokens > n_forced;
    layer->n_keep = plan_.MostOfList(plan_.layer(l), budget, layer->n_tokens);
    layer->budget = budget;
  }
  if (!layer->loses) slots_.LeaveCounts(l);
}

// Counts what is rescued of the slots that would go, in whole blocks.
uint32_t Eviction::RescuedOf(const LayerOutcome& layer) const {
  const uint64_t n = RescuedTokens(policy_);
  return layer.n_tokens - layer.n_keep < n ? 0 : static_cast<uint32_t>(n);
}

void Eviction::FindForced() {
  forced_.n_sink = policy_.sink.count;
  uint32_t n_context = 1;
  for (const LayerOutcome& layer : layers_) {
    n_context = std::max(n_context, ContextOf(layer));
  }
  forced_.n_recent = ForcedRecentTokens(InTokens(policy_, n_context));
  for (const LayerOutcome& layer : layers_) {
    if (HasDestinations()) break;
    forced_.n_recent = std::max(forced_.n_recent,
                                RecentOf(views_[layer.layer], layer.n_tokens));
  }
  forced_.protect = BetweenEnds(
      {options_.protected_positions, options_.protected_positions_len});
}

// Cuts ascending positions to those between both ends, so that what must stay counts
// once.
std::span<const int32_t> Eviction::BetweenEnds(
    std::span<const int32_t> positions) const {
  const int64_t n_seen = sequence_.logical_length();
  const auto begin = std::lower_bound(positions.begin(), positions.end(),
                                      int64_t{forced_.n_sink});
  const auto end =
      std::lower_bound(begin, positions.end(), n_seen - forced_.n_recent);
  return {begin, end};
}

// What an eviction that is told so does only with rows that move one by one.
Status Eviction::CheckMoveByRow(const char* what) const {
  for (const LayerEviction& layer : active_) {
    const Status status = CheckMovesByRow(views_[layer.layer]);
    if (status.ok()) continue;
    return Prefixed(status, "%s: views[%u]: ", what,
                    plan_.layer(layer.layer).number);
  }
  return Status();
}

// Recent rows begin at one slot, which heads that keep different numbers do not share.
Status Eviction::CheckNoneRecent() const {
  for (const LayerEviction& layer : active_) {
    const kvevict_view& view = views_[layer.layer];
    if (HasDestinations() || FirstRecent(view) == UINT32_MAX) continue;
    return InvalidArgument(
        "views[%u]: companions: recent rows, but heads keep different numbers "
        "of tokens",
        plan_.layer(layer.layer).number);
  }
  return Status();
}

// What must stay has to fit the layer's budget, in every list.
Status Eviction::CheckForcedFit(const LayerOutcome& layer) const {
  const ListCounts tokens = slots_.HostTokens(layer.layer);
  const ListCounts keep =
      slots_.HostNext(layer.layer, layer.n_keep - layer.n_rescued);
  const uint32_t n_sink = SinkOf(layer.layer);
  for (uint32_t list = 0; list < plan_.layer(layer.layer).n_lists; ++list) {
    const uint32_t n_tokens = tokens.Of(list);
    const uint32_t n_keep = keep.Of(list);
    if (n_keep == n_tokens) continue;
    const SlotBlocks blocks = BlocksOf(policy_);
    ForcedSlots forced(blocks, n_sink, forced_.n_recent, n_tokens);
    // Mostly all of them would fit, and then it does not matter which are held: a
    // device may have to be waited for to know.
    if (forced.ends() + forced_.protect.size() * blocks.size <= n_keep) {
      continue;
    }
    SlotPositions positions;
    KV_RETURN_IF_ERROR(sequence_.HostPositions(layer.layer, &positions));
    for (int32_t position : forced_.protect) {
      forced.Add(positions.SlotOf(list, position, n_tokens));
    }
    if (forced.count() > n_keep) {
      return InvalidArgument(
          "layer %u: budget %u < %s %u + recent %u + %llu protected "
          "positions%s",
          plan_.layer(layer.layer).number, n_keep,
          n_sink > policy_.sink.count ? "prompt" : "sink", n_sink,
          forced_.n_recent, forced.n_added(), BlockWords(blocks).text);
    }
  }
  return Status();
}

Status Eviction::CheckSignal() {
  if (DiversifiesBlocks(policy_) && !ranges_.empty()) {
    return InvalidArgument(
        "ranges with diverse_mass %s: blocks beyond the mass stay by keys "
        "alone",
        NumberText(policy_.diverse_mass).c_str());
  }
  for (LayerEviction& layer : active_) {
    const PlanLayer& of_plan = plan_.layer(layer.layer);
    layer.score.layer = of_plan.number;
    layer.score.view = layer.shape.view = &views_[layer.layer];
    layer.score.tokens = slots_.DeviceTokens(layer.layer);
    layer.score.n_seen = sequence_.logical_length();
    layer.score.n_sink =
        HasChunks(policy_) ? policy_.sink.count : SinkOf(layer.layer);
    layer.score.next_position =
        policy_.rotate != 0 ? layer.n_tokens : sequence_.logical_length();
    LayerInputs inputs = sequence_.inputs()[layer.layer];
    kvevict_plane observed;
    KV_RETURN_IF_ERROR(FindObservedSums(&layer, &inputs, &observed));
    const bool by_queries = IsScoredByQueries(plan_, inputs);
    Status status;
    if (plan_.ReadsRows() || by_queries) {
      status = plan_.CheckCanScore(of_plan, by_queries);
      if (status.ok()) {
        status = CheckScales(*layer.score.view, plan_.ReadsKeys() || by_queries,
                             plan_.ReadsValues());
      }
    }
    if (status.ok()) {
      status = FindInputs(plan_, of_plan, layer.n_tokens, inputs, &layer.score);
    }
    if (status.ok()) status = CheckChunkRows(layer.layer);
    if (status.ok()) status = CheckMarks(layer);
    if (!status.ok()) return Prefixed(status, "layer %u: ", of_plan.number);
    if (by_queries) KV_RETURN_IF_ERROR(FindQueryRows(&layer));
  }
  if (!signal_.Ranks()) return Status();
  return CheckScoring(plan_, sequence_.stream(), n_at_once(),
                      Jobs<uint32_t>(active_, &LayerEviction::layer),
                      Jobs<ScoreJob>(active_, &LayerEviction::score),
                      Jobs<ShapeJob>(active_, &LayerEviction::shape));
}

// Sums that the sequence has added up, where no others are given nor queries to make
// them of.
Status Eviction::FindObservedSums(LayerEviction* layer, LayerInputs* inputs,
                                  kvevict_plane* plane) const {
  const SumTable& sums = sequence_.sums();
  if (inputs->attention_sums != nullptr || inputs->queries != nullptr ||
      !sums.Has(layer->layer)) {
    return Status();
  }
  KV_RETURN_IF_ERROR(sums.CheckUpTo(layer->layer, sequence_.logical_length()));
  *plane = sums.PlaneOf(layer->layer);
  inputs->attention_sums = plane;
  inputs->n_sum_heads = plan_.SumRowsOf(plan_.layer(layer->layer));
  layer->score.n_summed = sums.CountOf(layer->layer);
  return Status();
}

// What blocks are made up of is told by sums that nobody divides.
Status Eviction::CheckMarks(const LayerEviction& layer) const {
  if (!RescuesBlocks(policy_) || !MarksBySums() ||
      (layer.score.n_sum_heads == 1 && layer.score.sums.data != nullptr)) {
    return Status();
  }
  return InvalidArgument(
      "rescue %u with rows mean needs attention_sums in one row of all heads, "
      "not in %u of queries or heads",
      policy_.rescue, layer.score.n_sum_heads);
}

// What goes and what it is merged into has to be readable.
Status Eviction::CheckMerge() {
  for (LayerEviction& layer : active_) {
    const PlanLayer& of_plan = plan_.layer(layer.layer);
    if (Status status = plan_.CheckCanMerge(of_plan); !status.ok()) {
      return Prefixed(status, "layer %u: ", of_plan.number);
    }
    layer.move.view = &views_[layer.layer];
    layer.move.merge = plan_.merge();
  }
  return context_.backend().merge.check(
      context_, sequence_.stream(),
      {Jobs<MoveJob>(active_, &LayerEviction::move), {}});
}

// What shares numbers is stored anew where it is.
Status Eviction::CheckRegroup() {
  for (const LayerEviction& layer : active_) {
    const kvevict_view& view = views_[layer.layer];
    MoveJob job;
    job.view = &view;
    job.change = GroupedRows(view);
    if (!job.change.any()) continue;
    const Status status = context_.backend().requantize.check(
        context_, sequence_.stream(), {Jobs<MoveJob>(job)});
    if (status.ok()) continue;
    return Prefixed(status, "views[%u]: ", plan_.layer(layer.layer).number);
  }
  return Status();
}

// What moves has to be turned.
Status Eviction::CheckRotate() {
  for (LayerEviction& layer : active_) {
    const PlanLayer& of_plan = plan_.layer(layer.layer);
    if (Status status = plan_.CheckCanRotate(of_plan); !status.ok()) {
      return Prefixed(status, "layer %u: ", of_plan.number);
    }
    layer.rotate.view = &TargetOf(layer);
  }
  return context_.backend().rotate.check(
      context_, sequence_.stream(),
      {Jobs<RotateJob>(active_, &LayerEviction::rotate), plan_.rope()});
}

// Rows of queries: the caller's, or those of the window that were observed.
Status Eviction::FindQueryRows(LayerEviction* layer) const {
  const LayerInputs& inputs = sequence_.inputs()[layer->layer];
  const PlanLayer& of_plan = plan_.layer(layer->layer);
  const bool observed = signal_.HasWindow() && inputs.queries == nullptr;
  uint32_t n_rows = 0;
  Status status = FindQueryCount(plan_, layer->n_tokens, inputs, &n_rows);
  if (!status.ok()) return Prefixed(status, "inputs[%u]: ", of_plan.number);
  if (!signal_.Needs(kAllQueries)) {
    KV_RETURN_IF_ERROR(sequence_.CheckQueries(layer->layer, n_rows, inputs));
  }
  if (observed) {
    layer->score.queries = sequence_.WindowQueries(layer->layer);
    return Status();
  }
  status = FindQueries(plan_, of_plan, n_rows, inputs, &layer->score);
  if (status.ok()) return status;
  return Prefixed(status, "inputs[%u]: ", of_plan.number);
}

}  // namespace kvevict
