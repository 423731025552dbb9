// What an eviction does. All layers' slots are chosen before the first byte moves.
#include <algorithm>

#include "core/evict/eviction.h"
#include "core/signals/score.h"

namespace kvevict {

Status Eviction::Run() {
  if (LosesTokens()) KV_RETURN_IF_ERROR(ChooseSlots());
  FillReport();
  if (!HasWork()) return Status();
  slots_.Forget();
  if (options_.undo != nullptr) KV_RETURN_IF_ERROR(SaveRows());
  KV_RETURN_IF_ERROR(MoveRows());
  if (!LosesTokens()) return Status();
  KV_RETURN_IF_ERROR(sequence_.sums().Move(sequence_.stream(), slots_, layers_,
                                           options_.undo != nullptr,
                                           Scratch(layout_.scores)));
  if (policy_.rotate != 0) KV_RETURN_IF_ERROR(Rotate());
  for (const LayerOutcome& layer : layers_) {
    if (!layer.loses) continue;
    if (policy_.rotate != 0) sequence_.ForgetQueries(layer.layer);
    sequence_.ForgetLse(layer.layer);
  }
  if (options_.undo != nullptr) sequence_.Remember();
  Status status = slots_.Commit(sequence_.stream(), layers_, forced_.n_recent);
  if (!status.ok()) slots_.Forget();
  return status;
}

// All layers' slots.
Status Eviction::ChooseSlots() {
  if (plan_.IsRagged()) {
    KV_RETURN_IF_ERROR(slots_.SendNextCounts(sequence_.stream()));
  }
  const bool is_scored = SplitsByScore(policy_);
  if (is_scored) {
    at_once_ = active_;
    EnterChunk(0);
    LayOutScores();
    KV_RETURN_IF_ERROR(Score());
    KV_RETURN_IF_ERROR(ShareBudgets());
  }
  KV_RETURN_IF_ERROR(SumCalls());
  int32_t* keep_slots = Part<int32_t>(layout_.keep);
  for (size_t i = 0; i < active_.size(); i += at_once_.size()) {
    at_once_ = active_.subspan(i);
    if (!OneList()) {
      const size_t n_alike =
          CountAlike(plan_, Jobs<uint32_t>(at_once_, &LayerEviction::layer));
      at_once_ = at_once_.first(std::min<size_t>(layout_.n_layers, n_alike));
      at_once_ = at_once_.first(CountOfSameSink());
      if (HasChunks(policy_)) at_once_ = at_once_.first(CountAsLong());
    }
    keep_slots = LayOutLists(keep_slots);
    const uint32_t n_chunks =
        Chunks(policy_, at_once_.front().n_tokens).Count();
    is_measured_ = false;
    for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
      if (!is_scored) {
        EnterChunk(chunk);
        LayOutScores();
        KV_RETURN_IF_ERROR(Score());
      }
      LayOutSelection();
      KV_RETURN_IF_ERROR(RefineScores());
      KV_RETURN_IF_ERROR(Reduce());
      KV_RETURN_IF_ERROR(Rescue());
      KV_RETURN_IF_ERROR(Vary());
      KV_RETURN_IF_ERROR(Select());
      KV_RETURN_IF_ERROR(MeasureMass());
    }
  }
  if (CountsByScore(policy_)) KV_RETURN_IF_ERROR(ReadCounts());
  return ShareMasses();
}

// What stays, to where it stays.
Status Eviction::MoveRows() {
  const Backend& backend = context_.backend();
  const Stream stream = sequence_.stream();
  const Jobs<MoveJob> moves(Moving(), &LayerEviction::move);
  const std::span<uint8_t> scratch = Scratch(layout_.scores);
  if (plan_.merge().Merges()) {
    KV_RETURN_IF_ERROR(backend.merge(context_, stream, {moves, scratch}));
  }
  KV_RETURN_IF_ERROR(IsByTable()
                         ? DropBlocks()
                         : backend.compact(context_, stream, {moves, scratch}));
  if (!AnyChanges(moves)) return Status();
  return backend.requantize(context_, stream, {moves});
}

// From the slots of the keep lists to the first ones.
Status Eviction::Rotate() {
  for (LayerEviction& layer : active_) {
    const KeepLists& keep = layer.keep;
    layer.rotate.tokens = {static_cast<uint32_t>(keep.stride), keep.count.each};
    layer.rotate.offsets = keep.slots;
    layer.rotate.n_lists = keep.n_lists;
  }
  return context_.backend().rotate(
      context_, sequence_.stream(),
      {Jobs<RotateJob>(active_, &LayerEviction::rotate), plan_.rope(),
       /*from_slots=*/true});
}

// Of the layers at once, the first ones of which the same first slots must stay.
size_t Eviction::CountOfSameSink() const {
  const uint32_t n_sink = SinkOf(at_once_.front().layer);
  size_t n = 1;
  while (n < at_once_.size() && SinkOf(at_once_[n].layer) == n_sink) ++n;
  return n;
}

// Of layers that are scored by them.
Status Eviction::SumCalls() const {
  const SumTable& sums = sequence_.sums();
  if (!sums.KeepsCalls() || !sums.has_memory()) return Status();
  const auto is_scored = [&](const LayerEviction& layer) {
    return layer.score.sums.data ==
           reinterpret_cast<const float*>(sums.PlaneOf(layer.layer).data);
  };
  for (size_t i = 0; i < active_.size(); ++i) {
    size_t n = 0;
    while (i + n < active_.size() && is_scored(active_[i + n])) ++n;
    KV_RETURN_IF_ERROR(sums.SumCalls(
        sequence_.stream(), slots_,
        Jobs<uint32_t>(active_.subspan(i, n), &LayerEviction::layer)));
    i += n;
  }
  return Status();
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
  uint32_t n_context = 0;  // of which budgets are
  for (LayerEviction& layer : active_) {
    if (const uint32_t n = ContextOf(layer); n_context != n) {
      n_context = n;
      KV_RETURN_IF_ERROR(
          LayerBudgets(policy_, n, measures, n_protected(), budgets));
    }
    FindCounts(budgets[layer.layer], &layer);
  }
  LeaveOutWhole();
  return plan_.IsRagged() ? slots_.SendNextCounts(stream) : Status();
}

// How many each list keeps, where its scores decided.
Status Eviction::ReadCounts() {
  KV_RETURN_IF_ERROR(slots_.ReadNextCounts(sequence_.stream()));
  // Where heads compete, what they hold together has counted.
  const uint64_t margin = HeadsCompete(policy_) ? 0 : policy_.margin;
  for (LayerEviction& layer : active_) {
    const std::span<const uint32_t> next = slots_.NextCounts(layer.layer);
    const ListCounts tokens = slots_.HostTokens(layer.layer);
    layer.n_keep = *std::max_element(next.begin(), next.end());
    layer.keep.count.most = layer.move.keep.count.most = layer.n_keep;
    layer.loses = false;
    for (uint32_t list = 0; list < next.size(); ++list) {
      layer.loses = layer.loses || next[list] + margin < tokens.Of(list);
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
  if (!Ranks()) return Status();
  return ScoreAndShape(plan_, sequence_.stream(), n_at_once(),
                       Jobs<uint32_t>(at_once_, &LayerEviction::layer),
                       Jobs<ScoreJob>(at_once_, &LayerEviction::score),
                       ShapesAndSelects()
                           ? Jobs<ShapeJob>()
                           : Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
                       Scratch(layout_.scratch));
}

// Heads compete by the scores that decide first: where tokens are secured, by shaped
// ones.
Status Eviction::RefineScores() {
  if (!Ranks()) return Status();
  if (plan_.PinsBest()) KV_RETURN_IF_ERROR(Secure());
  KV_RETURN_IF_ERROR(Refine(plan_, sequence_.stream(), n_at_once(),
                            Jobs<uint32_t>(at_once_, &LayerEviction::layer),
                            Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
                            Scratch(layout_.scratch)));
  return plan_.PinsBest() ? Status() : Normalize();
}

// What scale_by_best_share makes of scores decides the contest of heads alone. It lies in the
// memory of keys, which are found later.
Status Eviction::Secure() {
  if (plan_.ScalesByBestShare()) {
    for (LayerEviction& layer : at_once_) {
      layer.shape.scores = reinterpret_cast<float*>(layer.select.keys);
    }
    const Status status = Normalize();
    for (LayerEviction& layer : at_once_) {
      layer.select.scores = layer.shape.scores;
      layer.shape.scores = layer.reduce.out;
    }
    KV_RETURN_IF_ERROR(status);
  }
  KV_RETURN_IF_ERROR(
      context_.backend().pin_best(context_, sequence_.stream(), BestOfLists()));
  for (LayerEviction& layer : at_once_) {
    layer.select.scores = layer.shape.scores;
  }
  return Status();
}

Status Eviction::Normalize() const {
  if (!plan_.ScalesByBestShare()) return Status();
  return context_.backend().scale_by_best_share(context_, sequence_.stream(),
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
    const uint32_t n = layer.score.tokens.most;
    const uint64_t n_rows =
        signal_.Ranks() ? of_plan.geometry.n_kv_heads : of_plan.n_lists;
    float* const rows = apart.Next(of_plan, n, scores);
    layer.score.rows = rows;
    if (SplitsByScore(policy_)) layer.score.measure = &measure++->first;
    layer.shape = {layer.score.tokens, rows, scores, layer.score.view,
                   layer.score.weights};
    layer.reduce = {n, scores, scores};
    scores += n_rows * n;
  }
}

// Of the layers at once; the keep lists of all layers lie end to end. Returns where
// the next one goes.
int32_t* Eviction::LayOutLists(int32_t* keep_slots) {
  for (LayerEviction& layer : at_once_) {
    layer.keep =
        KeepLists::Packed(keep_slots, plan_.layer(layer.layer).n_lists,
                          slots_.DeviceNext(layer.layer, layer.n_keep));
    layer.move = MoveOf(layer, layer.keep);
    if (!OneList()) keep_slots += layer.keep.n_elements();
    layers_[layer.layer] = layer;
  }
  return keep_slots;
}

// Of the layers at once, from where their scores lie.
void Eviction::LayOutSelection() {
  float* const first_scores = Part<float>(layout_.scores);
  uint32_t* const first_keys = plan_.NeedsKeys()
                                   ? Part<uint32_t>(layout_.keys)
                                   : reinterpret_cast<uint32_t*>(first_scores);
  for (LayerEviction& layer : at_once_) {
    float* const scores = layer.shape.scores;
    layer.select = {layer.shape.tokens, Ranks() ? scores : nullptr,
                    first_keys + (scores - first_scores), KeepOfChunk(layer),
                    layer.score.slots};
    layer.select.masses = sequence_.DeviceMasses(layer.layer);
    if (CountsByScore(policy_)) {
      layer.select.budget = layer.budget;
      layer.select.counts = slots_.DeviceNextCounts(layer.layer);
    }
  }
}

// Scores of heads and layers that share a list; they lie end to end.
Status Eviction::Reduce() const {
  if (!Ranks() || policy_.scope == KVEVICT_SCOPE_KV_HEAD) return Status();
  uint32_t n_rows = 0;
  // Of rows that are all alike the maximum is exact.
  const bool alike = !OneList() && !plan_.Refines() &&
                     std::all_of(at_once_.begin(), at_once_.end(),
                                 [](const LayerEviction& layer) {
                                   return layer.score.n_sum_heads == 1;
                                 });
  for (const LayerEviction& layer : OneList() ? at_once_ : at_once_.first(1)) {
    n_rows += plan_.layer(layer.layer).geometry.n_kv_heads;
  }
  return context_.backend().reduce(
      context_, sequence_.stream(),
      {Jobs<ReduceJob>(OneList() ? at_once_.first(1) : at_once_,
                       &LayerEviction::reduce),
       n_rows, alike ? KVEVICT_REDUCE_MAX : policy_.over});
}

// First what stays of the budget is chosen, by lists without the rescued.
Status Eviction::Rescue() {
  if (!Ranks() || !RescuesBlocks(policy_)) return Status();
  const std::span<LayerEviction> jobs =
      OneList() ? at_once_.first(1) : at_once_;
  bool rescues = false;
  for (LayerEviction& layer : jobs) {
    const uint64_t row = layer.shape.tokens.most;
    layer.rescue = {layer.shape.scores,
                    {layer.shape.scores, row},
                    layer.n_rescued / policy_.select_block,
                    plan_.layer(layer.layer).number,
                    sequence_.logical_length()};
    if (MarksBySums()) layer.rescue.marks = layer.score.sums;
    layer.select.keep.count.most -= layer.n_rescued;
    rescues = rescues || layer.n_rescued > 0;
  }
  Status status;
  if (rescues) {
    status = context_.backend().rescue_blocks(
        context_, sequence_.stream(),
        {ArgsFor(Jobs<SelectJob>(jobs, &LayerEviction::select), HeadSplit()),
         Jobs<RescueJob>(jobs, &LayerEviction::rescue), policy_.anchor,
         policy_.seed});
  }
  for (LayerEviction& layer : jobs) {
    layer.select.keep.count.most += layer.n_rescued;
  }
  return status;
}

// What stays beyond a share of the mass; no list has another length than its layer.
Status Eviction::Vary() {
  if (!Ranks() || !DiversifiesBlocks(policy_)) return Status();
  return context_.backend().diversify_blocks(
      context_, sequence_.stream(),
      {ArgsFor(SelectJobs(), HeadSplit()), LayerAtOnce().geometry,
       static_cast<float>(policy_.diverse_mass), n_at_once(),
       Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
       Scratch(layout_.scratch)});
}

HeadSplit Eviction::Split() const {
  if (!CountsByScore(policy_)) return HeadSplit();
  return {policy_.heads, policy_.floor, policy_.threshold};
}

SelectArgs Eviction::ArgsFor(Jobs<SelectJob> jobs,
                             const HeadSplit& heads) const {
  return {jobs,  TieOf(policy_),    ForcedAtOnce(), Scratch(layout_.scratch),
          heads, BlocksOf(policy_), ranks_};
}

Jobs<SelectJob> Eviction::SelectJobs() const {
  return Jobs<SelectJob>(OneList() ? at_once_.first(1) : at_once_,
                         &LayerEviction::select);
}

// Layers that share a cache have the first one's, and all that of a list they share.
Status Eviction::ShareMasses() const {
  if (!plan_.ReportsMass()) return Status();
  for (const LayerOutcome& layer : layers_) {
    const uint32_t from = OneList() ? 0 : layer.owner;
    if (!layer.loses || layer.layer == from) continue;
    KV_RETURN_IF_ERROR(context_.backend().copy(
        context_, sequence_.stream(), sequence_.DeviceMasses(from),
        plan_.layer(layer.layer).n_lists * sizeof(Mass),
        sequence_.DeviceMasses(layer.layer)));
  }
  return Status();
}

// Of the layers at once, chunk by chunk.
Status Eviction::MeasureMass() {
  if (!plan_.ReportsMass() || !Ranks()) return Status();
  const bool adds = is_measured_;
  is_measured_ = true;
  return context_.backend().measure_mass(context_, sequence_.stream(),
                                         {SelectJobs(), adds});
}

// What was rescued stays whatever its rank, and so scores alone say what goes.
Status Eviction::Select() {
  const std::span<LayerEviction> all = at_once_;
  const auto is_rescued = [](const LayerEviction& layer) {
    return layer.n_rescued > 0;
  };
  for (size_t i = 0; i < all.size(); i += at_once_.size()) {
    at_once_ = all.subspan(i);
    if (!OneList() && RescuesBlocks(policy_)) {
      size_t n = 1;
      while (n < at_once_.size() &&
             is_rescued(at_once_[n]) == is_rescued(at_once_[0])) {
        ++n;
      }
      at_once_ = at_once_.first(n);
    }
    ranks_ = is_rescued(at_once_[0]) ? std::span<const TokenRange>() : ranges_;
    KV_RETURN_IF_ERROR(SelectAtOnce());
  }
  at_once_ = all;
  ranks_ = ranges_;
  return Status();
}

Status Eviction::SelectAtOnce() const {
  const Backend& backend = context_.backend();
  const Jobs<SelectJob> jobs = SelectJobs();
  // Where tokens were secured, lists have been counted.
  const HeadSplit heads = plan_.PinsBest() ? HeadSplit() : Split();
  if (sequence_.selects_on_host()) return SelectOnHost(jobs, heads);
  if (!ShapesAndSelects()) {
    return backend.select(context_, sequence_.stream(), ArgsFor(jobs, heads));
  }
  return backend.shape_and_select(
      context_, sequence_.stream(),
      {{plan_.ShapingOf(LayerAtOnce()), LayerAtOnce().geometry.n_kv_heads,
        Jobs<ShapeJob>(at_once_, &LayerEviction::shape),
        Scratch(layout_.scratch)},
       ArgsFor(jobs, heads)});
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
  if (Ranks()) {
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
    if (plan_.IsRagged()) {
      job.tokens = slots_.HostTokens(layer.layer);
      job.keep.count = slots_.HostNext(layer.layer, layer.n_keep);
    }
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
    job.slots.first = layer.score.slots.first;
  }
  KV_RETURN_IF_ERROR(kCpuBackend.select(
      context_, stream,
      ArgsFor(std::span<const SelectJob>(copy.jobs).first(jobs.size()),
              heads)));
  if (CountsByScore(policy_)) KV_RETURN_IF_ERROR(slots_.SendNextCounts(stream));
  const KeepLists& lists = at_once_[jobs.size() - 1].keep;
  const size_t n_keep = lists.slots - keep + lists.n_elements();
  return device.write(context_, stream, copy.keep, n_keep * sizeof(int32_t),
                      keep);
}

}  // namespace kvevict
