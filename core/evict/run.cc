// The steps of an eviction. Slots of all layers are chosen before the first
// byte moves.
#include <algorithm>

#include "core/evict/stages.h"
#include "core/signals/score.h"
#include "core/view/row_change.h"

namespace kvevict {

// Copies to the destination, or moves rows down in place.
MoveJob MoveOf(const EvictCall& call, const LayerOutcome& layer,
               const KeepLists& keep) {
  const uint32_t l = layer.layer;
  MoveJob job;
  job.view = &call.views()[l];
  job.tokens = call.slots.DeviceTokens(l);
  job.keep = keep;
  if (call.HasDestinations()) {
    job.destination = &call.TargetOf(layer);
    job.change = ChangeOf(call.views()[l], call.TargetOf(layer));
    return job;
  }
  job.shared_companions = call.Cache(l).shared_companions;
  job.merge = call.plan.merge();
  job.StayWhereRecent();
  return job;
}

namespace {

// Sets which slots a group scores: those of a chunk, or all.
void Enter(uint32_t chunk, Group* group) {
  const EvictCall& call = group->call;
  if (chunk == 0) {
    for (LayerEviction& layer : group->layers) {
      layer.score.slots = call.slots.DevicePositions(layer.layer);
      layer.score.keep = call.slots.DeviceNext(layer.layer, layer.n_keep);
    }
  }
  if (HasChunks(call.policy)) group->EnterChunk(chunk);
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

// Fills the selection jobs, given where scores lie. Keys replace the scores
// they are made from, unless something later still reads the scores.
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
  Enter(0, &all);
  LayOutScores(all);
  if (!LayersCompete(call.policy)) {
    KV_RETURN_IF_ERROR(RunStages(StageList::kScore, all));
    return ShareBudgets(call);
  }
  for (LayerEviction& layer : call.active) {
    layer.keep.n_lists = call.plan.layer(layer.layer).n_lists;
  }
  LayOutSelection(all);
  for (size_t i = 0; i < call.active.size();) {
    Group group = GroupFrom(call, i);
    KV_RETURN_IF_ERROR(RunStages(StageList::kScore, group));
    KV_RETURN_IF_ERROR(RunStages(StageList::kAdjust, group));
    i += group.layers.size();
  }
  LimitWinners(call);
  KV_RETURN_IF_ERROR(RunStages(StageList::kContest, all));
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
    const uint32_t n_chunks = HasChunks(call.policy) ? group.CountChunks() : 1;
    for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
      if (!is_scored) {
        Enter(chunk, &group);
        LayOutScores(group);
      }
      LayOutSelection(group);
      if (!is_scored) KV_RETURN_IF_ERROR(RunStages(StageList::kScore, group));
      if (!LayersCompete(call.policy)) {
        KV_RETURN_IF_ERROR(RunStages(StageList::kAdjust, group));
      }
      KV_RETURN_IF_ERROR(RunStages(StageList::kSelect, group));
    }
    i += group.layers.size();
  }
  if (CountsByScore(call.policy)) KV_RETURN_IF_ERROR(ReadCounts(call));
  return ShareMasses(call);
}

// Layers whose rows move: those that lose tokens first. With destinations all
// other layers follow.
std::span<LayerEviction> Moving(const EvictCall& call) {
  if (!call.HasDestinations()) return call.active;
  const std::span<LayerEviction> all = call.evictions();
  size_t n = call.active.size();
  for (const LayerOutcome& layer : call.layers) {
    if (layer.loses || layer.owner != layer.layer || layer.n_tokens == 0) {
      continue;
    }
    const ListCounts tokens = call.slots.DeviceTokens(layer.layer);
    all[n] = LayerEviction(layer);
    all[n++].move =
        MoveOf(call, layer,
               KeepLists::Packed(nullptr, call.plan.layer(layer.layer).n_lists,
                                 tokens));
  }
  return all.first(n);
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

Status Run(EvictCall& call) {
  Sequence& sequence = call.sequence;
  const bool saves = call.options.undo != nullptr;
  const bool rotates = call.policy.rotate != 0;
  if (call.LosesTokens()) KV_RETURN_IF_ERROR(ChooseSlots(call));
  FillReport(call);
  if (!call.HasWork()) return Status();
  call.slots.Forget();  // an earlier eviction can no longer be undone
  if (saves) KV_RETURN_IF_ERROR(SaveRows(call));
  KV_RETURN_IF_ERROR(MoveRows(call));
  if (!call.LosesTokens()) return Status();
  if (call.plan.ObservesSums()) {
    KV_RETURN_IF_ERROR(sequence.sums().Move(call.stream(), call.slots,
                                            call.layers, saves,
                                            call.Scratch(call.layout.scores)));
  }
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
