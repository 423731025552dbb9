#include "core/evict.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>

#include "core/block_numbers.h"
#include "core/budgets/budgets.h"
#include "core/overlap.h"
#include "core/policy.h"
#include "core/score.h"
#include "core/signal_inputs.h"
#include "core/view.h"

namespace kvevict {
namespace {

// ---- Checks that every policy shares ----

Status CheckOptions(const Sequence& sequence,
                    const kvevict_evict_options& options) {
  if (options.reserved != 0) {
    return InvalidArgument("options.reserved %u is not 0", options.reserved);
  }
  if (options.protected_positions_len > 0 &&
      options.protected_positions == nullptr) {
    return InvalidArgument(
        "protected_positions is NULL, but protected_positions_len is %zu",
        options.protected_positions_len);
  }
  int32_t least = 0;
  for (size_t i = 0; i < options.protected_positions_len; ++i) {
    const int32_t position = options.protected_positions[i];
    if (position < least ||
        static_cast<uint32_t>(position) >= sequence.logical_length()) {
      return InvalidArgument(
          "protected_positions[%zu] %d: ascending positions in [%d, %u) are "
          "wanted",
          i, position, least, sequence.logical_length());
    }
    least = position + 1;
  }
  return Status();
}

// Checks each layer's view and finds what layers share, which is counted and
// compacted once.
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

// One call of Evict(): its parts read each other's results in order.
class Eviction {
 public:
  Eviction(Sequence* sequence, const kvevict_evict_options& options,
           void* workspace, const EvictWorkspace& layout, uint32_t n_tokens)
      : sequence_(*sequence),
        slots_(sequence->slots()),
        plan_(sequence->plan()),
        context_(plan_.context()),
        policy_(plan_.policy()),
        signal_(plan_.signal()),
        views_(sequence->views()),
        options_(options),
        layout_(layout),
        n_tokens_(n_tokens),
        workspace_(static_cast<uint8_t*>(workspace)) {}

  Status Check();
  bool HasWork() const { return !active_.empty(); }
  Status Run();
  void FillReport() const;

 private:
  ListCounts AfterOf(const LayerOutcome& layer) const;
  template <typename T>
  T* Part(size_t offset) const {
    return reinterpret_cast<T*>(workspace_ + offset);
  }

  Status FindLayers();
  Status CheckSharing() const;
  Status CheckBudgets();
  void FindCounts(uint32_t budget, LayerOutcome* layer) const;
  void FindForced();
  Status CheckForcedFit(const LayerOutcome& layer) const;
  Status CheckSignal();
  Status CheckMerge();
  Status FindQueryRows(LayerEviction* layer) const;
  void LayOutScores();
  int32_t* LayOutLists(int32_t* keep_slots);
  Status Score() const;
  Status ShareBudgets();
  Status ReadCounts();
  Status RefineScores() const;
  Status Normalize() const;
  void LeaveOutWhole();
  Status Reduce() const;
  HeadSplit Split() const;
  SelectArgs ArgsFor(Jobs<SelectJob> jobs, const HeadSplit& heads) const;
  BestArgs BestOfLists() const;
  Status Select() const;
  Status SelectOnHost(Jobs<SelectJob> jobs, const HeadSplit& heads) const;

  // Where the scratch of operations begins, up to the end.
  std::span<uint8_t> Scratch(size_t offset) const {
    return {workspace_ + offset, layout_.bytes - offset};
  }
  const LayerCache& Cache(uint32_t layer) const {
    return sequence_.caches()[layer];
  }
  bool OneList() const { return plan_.scope() == KVEVICT_SCOPE_MODEL; }
  // Positions that every layer of a split by preference has room for.
  uint32_t n_protected() const {
    return MeasureOf(policy_) == Measure::kDynamics
               ? static_cast<uint32_t>(forced_.protect.size())
               : 0;
  }
  // Ends of the context that are measured lie side by side.
  bool CanBeMeasured(const LayerOutcome& layer) const {
    return MeasureOf(policy_) != Measure::kEnds ||
           uint64_t{policy_.n_sink} + policy_.n_recent +
                   2 * uint64_t{policy_.obs_window} <=
               layer.n_tokens;
  }
  // What budgets are reckoned by: a ratio is one of the context, which never exceeds
  // what the plan is for.
  uint32_t n_context() const {
    const uint32_t n_seen = sequence_.logical_length();
    return plan_.ContextOf(n_seen, n_seen);
  }
  const PlanLayer& LayerAtOnce() const {
    return plan_.layer(at_once_.front().layer);
  }
  // Nothing stands between shaping and selection, and the device has both in one.
  bool ShapesAndSelects() const {
    return context_.backend().shape_and_select != nullptr &&
           !sequence_.selects_on_host() && signal_.Ranks() &&
           policy_.scope == KVEVICT_SCOPE_KV_HEAD && !CountsByScore(policy_) &&
           !SplitsByScore(policy_) && !plan_.Refines() &&
           plan_.ShapingOf(LayerAtOnce()).n_terms == 1;
  }

  Sequence& sequence_;
  SlotTable& slots_;
  const Plan& plan_;
  const Context& context_;
  const kvevict_policy& policy_;
  const SignalInfo& signal_;
  const std::span<const kvevict_view> views_;
  const kvevict_evict_options& options_;
  const EvictWorkspace layout_;
  const uint32_t n_tokens_;  // of the longest layer
  uint8_t* const workspace_;

  std::span<LayerOutcome> layers_;
  std::span<LayerEviction> active_;  // that lose tokens, shared ones once
  // Of them, whose scores are there; alike, but for layers that share a list.
  std::span<LayerEviction> at_once_;
  Forced forced_;
};

// ---- Checks, before the first byte moves ----

Status Eviction::Check() {
  layers_ = sequence_.outcomes();
  active_ = sequence_.evictions().first(0);
  std::fill(layers_.begin(), layers_.end(), LayerOutcome());
  KV_RETURN_IF_ERROR(FindLayers());
  KV_RETURN_IF_ERROR(CheckBudgets());
  KV_RETURN_IF_ERROR(CheckSignal());
  if (!HasWork()) return Status();
  if (plan_.merge().Merges()) KV_RETURN_IF_ERROR(CheckMerge());
  KV_RETURN_IF_ERROR(CheckSharing());
  return context_.backend().check_capture(context_, sequence_.stream(),
                                          policy_);
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

// What moves must move once, by one list.
Status Eviction::CheckSharing() const {
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
  const uint32_t n_context = this->n_context();
  const std::span<uint32_t> budgets = sequence_.budgets();
  FindForced();
  if (n_context == 0) {
    std::fill(budgets.begin(), budgets.end(), 0);
  } else if (SplitsByScore(policy_)) {  // what is known before
    uint32_t least = 0;
    KV_RETURN_IF_ERROR(LeastBudget(policy_, n_context, n_protected(), &least));
    for (const LayerOutcome& layer : layers_) {
      budgets[layer.layer] = CanBeMeasured(layer) ? least : n_context;
    }
  } else {
    KV_RETURN_IF_ERROR(plan_.LayerBudgets(n_context, budgets));
  }
  for (LayerOutcome& layer : layers_) {
    FindCounts(budgets[layer.owner], &layer);
    if (!layer.loses || layer.owner != layer.layer) continue;
    KV_RETURN_IF_ERROR(CheckForcedFit(layer));
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

// How many slots the layer's lists keep, and whether that is less than they hold.
void Eviction::FindCounts(uint32_t budget, LayerOutcome* layer) const {
  const uint32_t l = layer->layer;
  const SlotBlocks blocks = BlocksOf(policy_);
  layer->n_keep = blocks.Within(budget, layer->n_tokens);
  layer->loses = layer->n_keep < layer->n_tokens;
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
    layer->loses = layer->loses || next[list] < tokens.Of(list);
    n_held += tokens.Of(list);
  }
  if (CountsByScore(policy_)) {  // `next` is what is known before
    layer->loses =
        !HeadsCompete(policy_) || n_held > uint64_t{budget} * next.size();
    layer->n_keep = plan_.MostOfList(plan_.layer(l), budget, layer->n_tokens);
    layer->budget = budget;
  }
  if (!layer->loses) slots_.LeaveCounts(l);
}

void Eviction::FindForced() {
  forced_.n_sink = policy_.n_sink;
  forced_.n_recent = ForcedRecentTokens(policy_);
  forced_.protect = {options_.protected_positions,
                     options_.protected_positions_len};
}

// What must stay has to fit the layer's budget, in every list.
Status Eviction::CheckForcedFit(const LayerOutcome& layer) const {
  const ListCounts tokens = slots_.HostTokens(layer.layer);
  const ListCounts keep = slots_.HostNext(layer.layer, layer.n_keep);
  for (uint32_t list = 0; list < plan_.layer(layer.layer).n_lists; ++list) {
    const uint32_t n_tokens = tokens.Of(list);
    const uint32_t n_keep = keep.Of(list);
    if (n_keep == n_tokens) continue;
    const SlotBlocks blocks = BlocksOf(policy_);
    ForcedSlots forced(blocks, forced_.n_sink, forced_.n_recent, n_tokens);
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
          "layer %u: budget %u < sink %u + recent %u + %llu protected "
          "positions%s",
          plan_.layer(layer.layer).number, n_keep, forced_.n_sink,
          forced_.n_recent, forced.n_added(), BlockWords(blocks).text);
    }
  }
  return Status();
}

Status Eviction::CheckSignal() {
  for (LayerEviction& layer : active_) {
    const PlanLayer& of_plan = plan_.layer(layer.layer);
    layer.score.view = &views_[layer.layer];
    layer.score.tokens = slots_.DeviceTokens(layer.layer);
    layer.score.n_seen = sequence_.logical_length();
    const LayerInputs& inputs = sequence_.inputs()[layer.layer];
    const bool by_queries = IsScoredByQueries(plan_, inputs);
    Status status;
    if (plan_.ReadsRows() || by_queries) {
      status = plan_.CheckCanScore(of_plan, by_queries);
    }
    if (status.ok()) {
      status = FindInputs(plan_, of_plan, layer.n_tokens, inputs, &layer.score);
    }
    if (!status.ok()) return Prefixed(status, "layer %u: ", of_plan.number);
    if (by_queries) KV_RETURN_IF_ERROR(FindQueryRows(&layer));
  }
  if (!signal_.Ranks()) return Status();
  return CheckScoring(plan_, sequence_.stream(), n_tokens_,
                      Jobs<uint32_t>(active_, &LayerEviction::layer),
                      Jobs<ScoreJob>(active_, &LayerEviction::score));
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
  const auto check = context_.backend().check_merging;
  if (check == nullptr) return Status();
  return check(context_, sequence_.stream(),
               Jobs<MoveJob>(active_, &LayerEviction::move));
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

// ---- Work ----

// All layers' slots are chosen before the first byte moves.
Status Eviction::Run() {
  const Backend& backend = context_.backend();
  if (plan_.IsRagged()) {
    KV_RETURN_IF_ERROR(slots_.SendNextCounts(sequence_.stream()));
  }
  const bool is_scored = SplitsByScore(policy_);
  if (is_scored) {
    at_once_ = active_;
    LayOutScores();
    KV_RETURN_IF_ERROR(Score());
    KV_RETURN_IF_ERROR(ShareBudgets());
  }
  int32_t* keep_slots = Part<int32_t>(layout_.keep);
  for (size_t i = 0; i < active_.size(); i += at_once_.size()) {
    at_once_ = active_.subspan(i);
    if (!OneList()) {
      const size_t n_alike =
          CountAlike(plan_, Jobs<uint32_t>(at_once_, &LayerEviction::layer));
      at_once_ = at_once_.first(std::min<size_t>(layout_.n_layers, n_alike));
    }
    if (!is_scored) {
      LayOutScores();
      KV_RETURN_IF_ERROR(Score());
    }
    keep_slots = LayOutLists(keep_slots);
    KV_RETURN_IF_ERROR(RefineScores());
    KV_RETURN_IF_ERROR(Reduce());
    KV_RETURN_IF_ERROR(Select());
  }
  if (CountsByScore(policy_)) KV_RETURN_IF_ERROR(ReadCounts());
  FillReport();
  if (!HasWork()) return Status();
  const Jobs<MoveJob> moves(active_, &LayerEviction::move);
  if (plan_.merge().Merges()) {
    KV_RETURN_IF_ERROR(backend.merge(context_, sequence_.stream(),
                                     {moves, Scratch(layout_.scores)}));
  }
  KV_RETURN_IF_ERROR(backend.compact(context_, sequence_.stream(),
                                     {moves, Scratch(layout_.scores)}));
  for (const LayerOutcome& layer : layers_) {
    if (layer.loses) sequence_.ForgetLse(layer.layer);
  }
  return slots_.Commit(sequence_.stream(), layers_, forced_.n_recent);
}

// How many each layer's lists keep, where the weights of all decided.
Status Eviction::ShareBudgets() {
  const Stream stream = sequence_.stream();
  const std::span<LayerMeasure> read = sequence_.read_measures();
  const std::span<LayerMeasure> measures = sequence_.measures();
  KV_RETURN_IF_ERROR(context_.backend().read(
      context_, stream, Part<LayerMeasure>(layout_.measures),
      active_.size() * sizeof(LayerMeasure), read.data()));
  std::fill(measures.begin(), measures.end(), LayerMeasure());
  for (size_t i = 0; i < active_.size(); ++i) {
    measures[active_[i].layer] = read[i];
  }
  for (const LayerOutcome& layer : layers_) {  // owners come first
    measures[layer.layer] = measures[layer.owner];
  }
  const std::span<uint32_t> budgets = sequence_.budgets();
  KV_RETURN_IF_ERROR(
      LayerBudgets(policy_, n_context(), measures, n_protected(), budgets));
  for (LayerEviction& layer : active_) {
    FindCounts(budgets[layer.layer], &layer);
  }
  LeaveOutWhole();
  return plan_.IsRagged() ? slots_.SendNextCounts(stream) : Status();
}

// How many each list keeps, where its scores decided.
Status Eviction::ReadCounts() {
  KV_RETURN_IF_ERROR(slots_.ReadNextCounts(sequence_.stream()));
  for (LayerEviction& layer : active_) {
    const std::span<const uint32_t> next = slots_.NextCounts(layer.layer);
    const ListCounts tokens = slots_.HostTokens(layer.layer);
    layer.n_keep = *std::max_element(next.begin(), next.end());
    layer.keep.count.most = layer.move.keep.count.most = layer.n_keep;
    layer.loses = false;
    for (uint32_t list = 0; list < next.size(); ++list) {
      layer.loses = layer.loses || next[list] < tokens.Of(list);
    }
  }
  LeaveOutWhole();
  return slots_.SendNextCounts(sequence_.stream());
}

// Layers that turn out to lose nothing.
void Eviction::LeaveOutWhole() {
  size_t n_active = 0;
  for (LayerEviction layer : active_) {
    if (layer.loses) {
      active_[n_active++] = layer;
    } else if (plan_.IsRagged()) {
      slots_.LeaveCounts(layer.layer);
    }
    layers_[layer.layer] = layer;
  }
  active_ = active_.first(n_active);
  for (LayerOutcome& layer : layers_) {
    if (layer.owner == layer.layer) continue;
    if (plan_.IsRagged()) slots_.CopyCounts(layer.owner, layer.layer);
    layer.n_keep = layers_[layer.owner].n_keep;
    layer.loses = layers_[layer.owner].loses;
  }
}

// Of the layers at once, by the policy's signal.
Status Eviction::Score() const {
  if (!signal_.Ranks()) return Status();
  return ScoreAndShape(plan_, sequence_.stream(), n_tokens_,
                       Jobs<uint32_t>(at_once_, &LayerEviction::layer),
                       Jobs<ScoreJob>(at_once_, &LayerEviction::score),
                       ShapesAndSelects()
                           ? Jobs<ShapeJob>()
                           : Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
                       Scratch(layout_.scratch));
}

// Heads compete by the scores that decide first: where tokens are secured, by shaped
// ones.
Status Eviction::RefineScores() const {
  if (!signal_.Ranks()) return Status();
  if (plan_.Secures()) {
    KV_RETURN_IF_ERROR(Normalize());
    KV_RETURN_IF_ERROR(
        context_.backend().secure(context_, sequence_.stream(), BestOfLists()));
  }
  KV_RETURN_IF_ERROR(Refine(plan_, sequence_.stream(), n_tokens_,
                            Jobs<uint32_t>(at_once_, &LayerEviction::layer),
                            Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
                            Scratch(layout_.scratch)));
  return plan_.Secures() ? Status() : Normalize();
}

Status Eviction::Normalize() const {
  if (!plan_.Normalizes()) return Status();
  return context_.backend().normalize(context_, sequence_.stream(),
                                      BestOfLists());
}

BestArgs Eviction::BestOfLists() const {
  return {ArgsFor(Jobs<SelectJob>(at_once_, &LayerEviction::select), Split()),
          Jobs<ShapeJob>(at_once_, &LayerEviction::shape), policy_.secure};
}

// Of the layers at once.
void Eviction::LayOutScores() {
  float* scores = Part<float>(layout_.scores);
  auto* measure = Part<LayerMeasure>(layout_.measures);
  ApartRows apart(plan_, Part<float>(layout_.rows));
  for (LayerEviction& layer : at_once_) {
    const PlanLayer& of_plan = plan_.layer(layer.layer);
    const kvevict_view* view = &views_[layer.layer];
    const uint32_t n = layer.n_tokens;
    const uint64_t n_rows =
        signal_.Ranks() ? of_plan.geometry.n_kv_heads : of_plan.n_lists;
    float* const rows = apart.Next(of_plan, n, scores);
    layer.score.layer = of_plan.number;
    layer.score.slots = slots_.DevicePositions(layer.layer);
    layer.score.keep = slots_.DeviceNext(layer.layer, layer.n_keep);
    layer.score.rows = rows;
    if (SplitsByScore(policy_)) layer.score.measure = &measure++->first;
    layer.shape = {slots_.DeviceTokens(layer.layer), rows, scores, view,
                   layer.score.weights};
    layer.reduce = {n, scores, scores};
    scores += n_rows * n;
  }
}

// Of the layers at once; the keep lists of all layers lie end to end. Returns where
// the next one goes.
int32_t* Eviction::LayOutLists(int32_t* keep_slots) {
  float* const first_scores = Part<float>(layout_.scores);
  uint32_t* const first_keys = plan_.NeedsBest()
                                   ? Part<uint32_t>(layout_.keys)
                                   : reinterpret_cast<uint32_t*>(first_scores);
  for (LayerEviction& layer : at_once_) {
    const PlanLayer& of_plan = plan_.layer(layer.layer);
    float* const scores = layer.shape.scores;
    const KeepLists keep =
        KeepLists::Packed(keep_slots, of_plan.n_lists,
                          slots_.DeviceNext(layer.layer, layer.n_keep));
    layer.select = {layer.shape.tokens, signal_.Ranks() ? scores : nullptr,
                    first_keys + (scores - first_scores), keep,
                    layer.score.slots};
    if (CountsByScore(policy_)) {
      layer.select.budget = layer.budget;
      layer.select.counts = slots_.DeviceNextCounts(layer.layer);
    }
    layer.move = {&views_[layer.layer], layer.shape.tokens, keep,
                  Cache(layer.layer).shared_companions, plan_.merge()};
    layer.keep = keep;
    if (!OneList()) keep_slots += keep.n_elements();
    layers_[layer.layer] = layer;
  }
  return keep_slots;
}

// Scores of heads and layers that share a list; they lie end to end.
Status Eviction::Reduce() const {
  if (!signal_.Ranks() || policy_.scope == KVEVICT_SCOPE_KV_HEAD) {
    return Status();
  }
  uint32_t n_rows = 0;
  for (const LayerEviction& layer : OneList() ? at_once_ : at_once_.first(1)) {
    n_rows += plan_.layer(layer.layer).geometry.n_kv_heads;
  }
  return context_.backend().reduce(
      context_, sequence_.stream(),
      {Jobs<ReduceJob>(OneList() ? at_once_.first(1) : at_once_,
                       &LayerEviction::reduce),
       n_rows, policy_.scope_reduce});
}

HeadSplit Eviction::Split() const {
  if (!CountsByScore(policy_)) return HeadSplit();
  return {policy_.head_split, policy_.head_floor, policy_.score_threshold};
}

SelectArgs Eviction::ArgsFor(Jobs<SelectJob> jobs,
                             const HeadSplit& heads) const {
  return {jobs,  TieOf(policy_),   forced_, Scratch(layout_.scratch),
          heads, BlocksOf(policy_)};
}

Status Eviction::Select() const {
  const Backend& backend = context_.backend();
  const Jobs<SelectJob> jobs(OneList() ? at_once_.first(1) : at_once_,
                             &LayerEviction::select);
  // Where tokens were secured, lists have been counted.
  const HeadSplit heads = plan_.Secures() ? HeadSplit() : Split();
  if (sequence_.selects_on_host()) return SelectOnHost(jobs, heads);
  if (!ShapesAndSelects()) {
    return backend.select(context_, sequence_.stream(), ArgsFor(jobs, heads));
  }
  return backend.shape_and_select(
      context_, sequence_.stream(),
      {plan_.ShapingOf(LayerAtOnce()), LayerAtOnce().geometry.n_kv_heads,
       Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
       Scratch(layout_.scratch)},
      ArgsFor(jobs, heads));
}

// Scores come down, keep lists go up; jobs of the same shape on the host.
Status Eviction::SelectOnHost(Jobs<SelectJob> jobs,
                              const HeadSplit& heads) const {
  const Backend& device = context_.backend();
  const Stream stream = sequence_.stream();
  const HostCopy copy = sequence_.host_copy();
  const float* scores = Part<float>(layout_.scores);
  int32_t* keep = Part<int32_t>(layout_.keep);
  const SelectJob& last = jobs[jobs.size() - 1];
  if (signal_.Ranks()) {
    const size_t n_scores =
        last.scores - scores + uint64_t{last.keep.n_lists} * last.tokens.most;
    KV_RETURN_IF_ERROR(device.read(context_, stream, scores,
                                   n_scores * sizeof(float), copy.scores));
  }
  if (CountsByScore(policy_) && !heads.Counts()) {
    KV_RETURN_IF_ERROR(slots_.ReadNextCounts(stream));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    SelectJob& job = copy.jobs[i];
    const LayerEviction& layer = at_once_[i];
    job = jobs[i];
    job.tokens = slots_.HostTokens(layer.layer);
    job.keep.count = slots_.HostNext(layer.layer, layer.n_keep);
    if (job.counts != nullptr) {
      job.counts = slots_.NextCounts(layer.layer).data();
    }
    const float* const from = job.scores != nullptr
                                  ? job.scores
                                  : reinterpret_cast<const float*>(job.keys);
    float* const row = copy.scores + (from - scores);
    job.keys = reinterpret_cast<uint32_t*>(row);
    if (job.scores != nullptr) job.scores = row;
    job.keep.slots = copy.keep + (job.keep.slots - keep);
    KV_RETURN_IF_ERROR(sequence_.HostPositions(layer.layer, &job.slots));
  }
  KV_RETURN_IF_ERROR(kCpuBackend.select(
      context_, stream,
      ArgsFor(std::span<const SelectJob>(copy.jobs).first(jobs.size()),
              heads)));
  if (CountsByScore(policy_)) KV_RETURN_IF_ERROR(slots_.SendNextCounts(stream));
  const size_t n_keep = last.keep.slots - keep + last.keep.n_elements();
  return device.write(context_, stream, copy.keep, n_keep * sizeof(int32_t),
                      keep);
}

// ---- Report ----

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

// Of a layer's lists, and of the layer where it is no other's.
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
  sequence_.report() = KVEVICT_EVICT_REPORT_INIT;
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

// Policy none keeps no workspace; it only looks.
Status CheckAndReportNone(Sequence* sequence) {
  KV_RETURN_IF_ERROR(FindCaches(*sequence));
  sequence->report() = KVEVICT_EVICT_REPORT_INIT;
  for (uint32_t l = 0; l < sequence->plan().n_layers(); ++l) {
    const ListCounts tokens = sequence->slots().HostTokens(l);
    ReportLayer(sequence, l, tokens, tokens);
  }
  return Status();
}

}  // namespace

Status Evict(Sequence* sequence, const kvevict_evict_options& options,
             void* workspace, size_t workspace_bytes) {
  const Plan& plan = sequence->plan();
  const uint32_t n_tokens = std::max(1u, sequence->slots().Longest());
  KV_RETURN_IF_ERROR(
      CheckWorkspace(plan.context(), workspace, workspace_bytes,
                     plan.WorkspaceFor(KVEVICT_OPERATION_EVICT, n_tokens)));
  KV_RETURN_IF_ERROR(CheckOptions(*sequence, options));
  if (TouchesNothing(plan.policy())) return CheckAndReportNone(sequence);
  Eviction eviction(sequence, options, workspace,
                    plan.LayOutEvict(n_tokens, workspace_bytes), n_tokens);
  KV_RETURN_IF_ERROR(eviction.Check());
  if (!eviction.HasWork()) {
    eviction.FillReport();
    return Status();
  }
  const Status status = eviction.Run();
  if (!status.ok()) sequence->ClearReport();
  return status;
}

}  // namespace kvevict
