// The steps of an eviction. Slots of all layers are chosen before the first
// byte moves.
#include "core/evict/stages.h"

#include <algorithm>

#include "core/signals/score.h"

namespace kvevict {
namespace {

constexpr const Stage* kScoreStages[] = {
    &kScore,        &kPinBest,     &kApplyWeights, &kSubtractRedundancy,
    &kStandardize,  &kAddLeverage, &kSecureMass,   &kScaleByBestShare,
    &kSecureValues, &kDraw,        &kReduce};
// Runs once, for all layers.
constexpr const Stage* kLayerStages[] = {&kCountWinners};
constexpr const Stage* kSelectStages[] = {&kRescueBlocks, &kDiversifyBlocks,
                                          &kSelect, &kMeasureMass};

Status RunStages(std::span<const Stage* const> stages, Group& group) {
  for (const Stage* stage : stages) {
    if (!stage->takes_part(group.call.plan)) continue;
    if (group.Ranks() || stage->always) KV_RETURN_IF_ERROR(stage->run(group));
  }
  return Status();
}

// The stages that a group runs on its own, if those before have been run for
// all layers.
std::span<const Stage* const> OwnScoreStages(const Policy& policy) {
  const std::span<const Stage* const> all = kScoreStages;
  if (LayersCompete(policy)) return {};
  return MeasuresLayers(policy) ? all.subspan(1) : all;
}

// Sets where the scores of a group lie.
void LayOutScores(const Group& group) {
  const EvictCall& call = group.call;
  const Plan& plan = call.plan;
  float* scores = call.Part<float>(call.layout.scores);
  float* masses = call.Part<float>(call.layout.masses);
  auto* measure = call.Part<LayerMeasure>(call.layout.measures);
  ApartRows apart(plan, call.Part<float>(call.layout.rows));
  for (LayerEviction& layer : group.layers) {
    const PlanLayer& of_plan = plan.layer(layer.layer);
    const uint32_t n = layer.score.tokens.most;
    const uint64_t n_rows =
        call.signal.Ranks() ? of_plan.geometry.n_kv_heads : of_plan.n_lists;
    float* const rows = apart.Next(of_plan, n, scores);
    layer.score.rows = rows;
    if (MeasuresLayers(call.policy)) layer.score.measure = &measure++->first;
    layer.shape = {&layer.score, rows, scores};
    layer.shape.blend = BlendOf(call.policy, call.ShareOf(layer));
    layer.reduce = {n, scores, scores};
    if (SecuresMass(call.policy)) {
      layer.score.masses = masses;
      layer.shape.share = call.ShareOf(layer);
      masses += n_rows * n;
    }
    scores += n_rows * n;
  }
}

// Sets where keep lists lie: end to end over all layers. Returns where the next
// one goes.
int32_t* LayOutLists(const Group& group, int32_t* keep_slots) {
  const EvictCall& call = group.call;
  for (LayerEviction& layer : group.layers) {
    layer.keep =
        KeepLists::Packed(keep_slots, call.plan.layer(layer.layer).n_lists,
                          call.slots.DeviceNext(layer.layer, layer.n_keep));
    layer.move = MoveOf(call, layer, layer.keep);
    if (!call.OneList()) keep_slots += layer.keep.n_elements();
    call.layers[layer.layer] = layer;
  }
  return keep_slots;
}

// Fills the selection jobs, given where scores lie.
void LayOutSelection(const Group& group) {
  const EvictCall& call = group.call;
  float* const first_scores = call.Part<float>(call.layout.scores);
  uint32_t* const first_keys = call.plan.NeedsKeys()
                                   ? call.Part<uint32_t>(call.layout.keys)
                                   : reinterpret_cast<uint32_t*>(first_scores);
  for (LayerEviction& layer : group.layers) {
    float* const scores = layer.shape.scores;
    layer.select = {layer.score.tokens, group.Ranks() ? scores : nullptr,
                    first_keys + (scores - first_scores), group.KeepOf(layer),
                    layer.score.slots};
    layer.select.masses = call.sequence.DeviceMasses(layer.layer);
    layer.select.budget = layer.budget;
    layer.select.together = layer.together;
    if (CountsByScore(call.policy)) {
      layer.select.counts = call.slots.DeviceNextCounts(layer.layer);
    }
  }
}

// The layers from `first` that are selected together.
Group GroupFrom(EvictCall& call, size_t first) {
  Group group{call, call.active.subspan(first)};
  if (call.OneList()) return group;
  const size_t n_alike = CountAlike(call.plan, group.numbers());
  group.layers =
      group.layers.first(std::min<size_t>(call.layout.n_layers, n_alike));
  const uint32_t n_sink = call.SinkOf(group.layers.front().layer);
  size_t n = 1;
  while (n < group.layers.size() &&
         call.SinkOf(group.layers[n].layer) == n_sink) {
    ++n;
  }
  group.layers = group.layers.first(n);
  if (HasChunks(call.policy)) {
    group.layers = group.layers.first(group.CountAsLong());
  }
  return group;
}

// Sums the recorded calls of every layer that the next score reads sums from.
Status SumCalls(const EvictCall& call) {
  const SumTable& sums = call.sequence.sums();
  if (!sums.KeepsCalls() || !sums.has_memory()) return Status();
  const auto is_scored = [&](const LayerEviction& layer) {
    return layer.score.sums.data ==
           reinterpret_cast<const float*>(sums.PlaneOf(layer.layer).data);
  };
  for (size_t i = 0; i < call.active.size(); ++i) {
    size_t n = 0;
    while (i + n < call.active.size() && is_scored(call.active[i + n])) ++n;
    KV_RETURN_IF_ERROR(sums.SumCalls(
        call.stream(), call.slots,
        Jobs<uint32_t>(call.active.subspan(i, n), &LayerEviction::layer)));
    i += n;
  }
  return Status();
}

// Copies masses to layers that share a cache or, with one list, to all layers.
Status ShareMasses(const EvictCall& call) {
  if (!call.plan.ReportsMass()) return Status();
  for (const LayerOutcome& layer : call.layers) {
    const uint32_t from = call.OneList() ? 0 : layer.owner;
    if (!layer.loses || layer.layer == from) continue;
    KV_RETURN_IF_ERROR(call.backend().copy(
        call.context, call.stream(), call.sequence.DeviceMasses(from),
        call.plan.layer(layer.layer).n_lists * sizeof(Mass),
        call.sequence.DeviceMasses(layer.layer)));
  }
  return Status();
}

// Runs the stages of all layers that come before their budgets are known, and
// shares the budgets.
Status ShareOverLayers(EvictCall& call) {
  Group all{call, call.active};
  all.Enter(0);
  LayOutScores(all);
  if (!LayersCompete(call.policy)) {
    KV_RETURN_IF_ERROR(kScore.run(all));
    return ShareBudgets(call);
  }
  for (LayerEviction& layer : call.active) {
    layer.keep.n_lists = call.plan.layer(layer.layer).n_lists;
  }
  LayOutSelection(all);
  for (size_t i = 0; i < call.active.size();) {
    Group group = GroupFrom(call, i);
    KV_RETURN_IF_ERROR(RunStages(kScoreStages, group));
    i += group.layers.size();
  }
  LimitWinners(call);
  KV_RETURN_IF_ERROR(RunStages(kLayerStages, all));
  return ShareBudgets(call);
}

Status ChooseSlots(EvictCall& call) {
  if (call.plan.IsRagged()) {
    KV_RETURN_IF_ERROR(call.slots.SendNextCounts(call.stream()));
  }
  const bool is_scored = SplitsByScore(call.policy);
  if (is_scored) KV_RETURN_IF_ERROR(ShareOverLayers(call));
  KV_RETURN_IF_ERROR(SumCalls(call));
  int32_t* keep_slots = call.Part<int32_t>(call.layout.keep);
  for (size_t i = 0; i < call.active.size();) {
    Group group = GroupFrom(call, i);
    keep_slots = LayOutLists(group, keep_slots);
    const uint32_t n_chunks =
        Chunks(call.policy, group.layers.front().n_tokens).Count();
    for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
      if (!is_scored) {
        group.Enter(chunk);
        LayOutScores(group);
      }
      LayOutSelection(group);
      KV_RETURN_IF_ERROR(RunStages(OwnScoreStages(call.policy), group));
      KV_RETURN_IF_ERROR(RunStages(kSelectStages, group));
    }
    i += group.layers.size();
  }
  if (CountsByScore(call.policy)) KV_RETURN_IF_ERROR(ReadCounts(call));
  return ShareMasses(call);
}

// Moves the rows that stay.
Status MoveRows(EvictCall& call) {
  const Backend& backend = call.backend();
  const Stream stream = call.stream();
  const Jobs<MoveJob> moves(Moving(call), &LayerEviction::move);
  const std::span<uint8_t> scratch = call.Scratch(call.layout.scores);
  if (call.plan.merge().Merges()) {
    KV_RETURN_IF_ERROR(backend.merge(call.context, stream, {moves, scratch}));
  }
  if (FitsValues(call.policy)) KV_RETURN_IF_ERROR(FitKept(call));
  KV_RETURN_IF_ERROR(call.IsByTable() ? DropBlocks(call)
                                      : backend.compact(call.context, stream,
                                                        {moves, scratch}));
  if (!AnyChanges(moves)) return Status();
  return backend.requantize(call.context, stream, {moves});
}

// Rotates the keys that stay from their old slots to their new ones: a slot is
// the position of its key.
Status Rotate(EvictCall& call) {
  for (LayerEviction& layer : call.active) {
    const KeepLists& keep = layer.keep;
    layer.rotate.tokens = {static_cast<uint32_t>(keep.stride), keep.count.each};
    layer.rotate.offsets = keep.slots;
    layer.rotate.n_lists = keep.n_lists;
  }
  return call.backend().rotate(
      call.context, call.stream(),
      {Jobs<RotateJob>(call.active, &LayerEviction::rotate), call.plan.rope(),
       /*from_slots=*/true});
}

}  // namespace

ScratchNeeds ScratchOfStages(const Plan& plan, uint32_t n_layers,
                             uint32_t n_tokens, bool scores, bool selects) {
  ScratchNeeds most;
  const auto add = [&](std::span<const Stage* const> stages) {
    for (const Stage* stage : stages) {
      if (stage->scratch == nullptr || !stage->takes_part(plan)) continue;
      if (stage->always ? !selects : !scores) continue;
      most = Larger(most, stage->scratch(plan, n_layers, n_tokens));
    }
  };
  add(kScoreStages);
  if (selects) add(kLayerStages);
  add(kSelectStages);
  return most;
}

Status Run(EvictCall& call) {
  Sequence& sequence = call.sequence;
  const bool saves = call.options.undo != nullptr;
  const bool rotates = call.policy.rotate != 0;
  if (call.LosesTokens()) KV_RETURN_IF_ERROR(ChooseSlots(call));
  FillReport(call);
  if (!call.HasWork()) return Status();
  call.slots.Forget();
  if (saves) KV_RETURN_IF_ERROR(SaveRows(call));
  KV_RETURN_IF_ERROR(MoveRows(call));
  if (!call.LosesTokens()) return Status();
  KV_RETURN_IF_ERROR(sequence.sums().Move(call.stream(), call.slots,
                                          call.layers, saves,
                                          call.Scratch(call.layout.scores)));
  if (rotates) KV_RETURN_IF_ERROR(Rotate(call));
  for (const LayerOutcome& layer : call.layers) {
    if (!layer.loses) continue;
    if (rotates) sequence.ForgetQueries(layer.layer);
    sequence.ForgetLse(layer.layer);
  }
  if (saves) sequence.Remember();
  Status status =
      call.slots.Commit(call.stream(), call.layers, call.forced.n_recent);
  if (!status.ok()) call.slots.Forget();
  return status;
}

}  // namespace kvevict
