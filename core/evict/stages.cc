// The stages in which an eviction chooses slots by scores.
#include "core/evict/stages.h"

#include <algorithm>

#include "core/signals/score.h"

namespace kvevict {

HeadSplit Group::Split() const {
  if (!CountsByScore(call.policy)) return HeadSplit();
  return {call.policy.heads, call.policy.floor, call.policy.threshold};
}

SelectArgs Group::ArgsFor(Jobs<SelectJob> jobs, const HeadSplit& heads) const {
  return {jobs,  TieOf(call.policy),    MustStay(),       scratch(),
          heads, BlocksOf(call.policy), call.ranges.all()};
}

Forced Group::MustStay() const {
  if (HasChunks(call.policy)) return MustStayInChunk();
  Forced forced = call.forced;
  forced.n_sink = call.SinkOf(layers.front().layer);
  return forced;
}

KeepLists Group::KeepOf(const LayerEviction& layer) const {
  return HasChunks(call.policy) ? KeepOfChunk(layer) : layer.keep;
}

namespace {

// Scores by the policy's signal. Also shapes the scores, unless selection does.
Status Score(Group& group) {
  const EvictCall& call = group.call;
  return ScoreAndShape(call.plan, call.stream(), call.n_at_once(),
                       group.numbers(), group.All(&LayerEviction::score),
                       group.ShapesAndSelects()
                           ? Jobs<ShapeJob>()
                           : group.All(&LayerEviction::shape),
                       group.scratch());
}

Status WeighShaped(Group& group) {
  const EvictCall& call = group.call;
  return ApplyWeights(call.plan, call.stream(), group.numbers(),
                      group.All(&LayerEviction::shape));
}

Status TakeOffRedundancy(Group& group) {
  const EvictCall& call = group.call;
  return SubtractRedundancy(call.plan, call.stream(), call.n_at_once(),
                            group.numbers(), group.All(&LayerEviction::shape),
                            group.scratch());
}

Status StandardizeScores(Group& group) {
  const EvictCall& call = group.call;
  return Standardize(call.plan, call.stream(), group.numbers(),
                     group.All(&LayerEviction::shape));
}

Status AddKeyLeverage(Group& group) {
  const EvictCall& call = group.call;
  LeverageRows rows(group.scratch());
  for (LayerEviction& layer : group.layers) {
    layer.score.rows = layer.shape.leverage =
        rows.Next(call.plan.layer(layer.layer), layer.score.tokens.most);
  }
  return AddLeverage(call.plan, call.stream(), call.n_at_once(),
                     group.numbers(), group.All(&LayerEviction::score),
                     group.All(&LayerEviction::shape), rows.rest());
}

// Reduces the scores of heads and layers that share a list. They lie end to
// end.
Status Reduce(Group& group) {
  const EvictCall& call = group.call;
  const std::span<LayerEviction> layers = group.layers;
  uint32_t n_rows = 0;
  // If all rows are equal their maximum is exact.
  const bool alike =
      !call.OneList() && !call.plan.Refines() && !call.plan.Standardizes() &&
      !call.plan.AddsLeverage() &&
      std::all_of(layers.begin(), layers.end(), [](const LayerEviction& layer) {
        return layer.score.n_sum_heads == 1;
      });
  for (const LayerEviction& layer : call.OneList() ? layers : layers.first(1)) {
    n_rows += call.plan.layer(layer.layer).geometry.n_kv_heads;
  }
  return call.backend().reduce(
      call.context, call.stream(),
      {Jobs<ReduceJob>(group.Listed(), &LayerEviction::reduce), n_rows,
       alike ? KVEVICT_REDUCE_MAX : call.policy.over});
}

// Secures tokens by their mass, whatever they score.
Status SecureMass(Group& group) {
  const EvictCall& call = group.call;
  return call.backend().secure_mass(
      call.context, call.stream(),
      {group.First().geometry, call.policy, group.All(&LayerEviction::shape),
       group.scratch()});
}

Status DrawByScores(Group& group) {
  const EvictCall& call = group.call;
  return Draw(call.plan, call.stream(), group.numbers(),
              group.All(&LayerEviction::shape));
}

BestArgs BestOf(const Group& group) {
  return {group.ArgsFor(group.All(&LayerEviction::select), group.Split()),
          group.All(&LayerEviction::shape), group.call.policy.secure};
}

Status ScaleByBestShare(Group& group) {
  const EvictCall& call = group.call;
  return call.backend().scale_by_best_share(call.context, call.stream(),
                                            BestOf(group));
}

// Heads compete by shaped scores. Scaling by the best share is for this contest
// only, so the scaled scores go into the memory of keys, which are computed
// later.
Status PinBest(Group& group) {
  const EvictCall& call = group.call;
  if (call.plan.ScalesByBestShare()) {
    for (LayerEviction& layer : group.layers) {
      layer.shape.scores = reinterpret_cast<float*>(layer.select.keys);
    }
    const Status status = ScaleByBestShare(group);
    for (LayerEviction& layer : group.layers) {
      layer.select.scores = layer.shape.scores;
      layer.shape.scores = layer.reduce.out;
    }
    KV_RETURN_IF_ERROR(status);
  }
  KV_RETURN_IF_ERROR(
      call.backend().pin_best(call.context, call.stream(), BestOf(group)));
  for (LayerEviction& layer : group.layers) {
    layer.select.scores = layer.shape.scores;
  }
  return Status();
}

// The measures go into the memory of keys, which are computed later.
Status SecureValues(Group& group) {
  const EvictCall& call = group.call;
  for (LayerEviction& layer : group.layers) {
    layer.shape.scores = reinterpret_cast<float*>(layer.select.keys);
  }
  const Status status = call.backend().measure_values(
      call.context, call.stream(),
      {group.First().geometry, call.policy, group.All(&LayerEviction::shape)});
  for (LayerEviction& layer : group.layers) {
    layer.select.scores = layer.shape.scores;
    layer.shape.scores = layer.reduce.out;
  }
  KV_RETURN_IF_ERROR(status);
  BestArgs best = BestOf(group);
  best.share = 0.0;
  best.beside = call.policy.secure_values;
  KV_RETURN_IF_ERROR(
      call.backend().pin_best(call.context, call.stream(), best));
  for (LayerEviction& layer : group.layers) {
    layer.select.scores = layer.shape.scores;
  }
  return Status();
}

// Finds what lists keep if those of all layers compete.
Status CountWinners(Group& group) {
  const EvictCall& call = group.call;
  const HeadSplit heads = {HeadRule::kAdaptive, call.policy.floor, 0.0};
  SelectArgs select = group.ArgsFor(group.selects(), heads);
  select.ranges = {};
  return call.backend().count_winners(
      call.context, call.stream(),
      {select, call.n_winners, call.Part<ListWinners>(call.layout.winners),
       group.scratch()});
}

// Selects within the budget first: the lists are shortened by the rescued
// slots.
Status RescueBlocks(Group& group) {
  const EvictCall& call = group.call;
  const std::span<LayerEviction> jobs = group.Listed();
  bool rescues = false;
  for (LayerEviction& layer : jobs) {
    const uint64_t row = layer.score.tokens.most;
    layer.rescue = {layer.shape.scores,
                    {layer.shape.scores, row},
                    layer.n_rescued / call.policy.select_block,
                    call.plan.layer(layer.layer).number,
                    call.sequence.logical_length()};
    if (call.MarksBySums()) layer.rescue.marks = layer.score.sums;
    layer.select.keep.count.most -= layer.n_rescued;
    rescues = rescues || layer.n_rescued > 0;
  }
  Status status;
  if (rescues) {
    status = call.backend().rescue_blocks(
        call.context, call.stream(),
        {group.ArgsFor(group.selects(), HeadSplit()),
         Jobs<RescueJob>(jobs, &LayerEviction::rescue), call.policy.anchor,
         call.policy.seed});
  }
  for (LayerEviction& layer : jobs) {
    layer.select.keep.count.most += layer.n_rescued;
  }
  return status;
}

// Chooses the blocks that stay beyond a share of the mass. All lists are as
// long as their layer.
Status DiversifyBlocks(Group& group) {
  const EvictCall& call = group.call;
  return call.backend().diversify_blocks(
      call.context, call.stream(),
      {group.ArgsFor(group.selects(), HeadSplit()), group.First().geometry,
       static_cast<float>(call.policy.diverse_mass), call.n_at_once(),
       group.All(&LayerEviction::shape), group.scratch()});
}

// Reads scores to the host, runs the same jobs there and writes the keep lists
// back.
Status SelectOnHost(const Group& group, SelectArgs args) {
  const EvictCall& call = group.call;
  const Jobs<SelectJob> jobs = args.jobs;
  const Backend& device = call.backend();
  const Stream stream = call.stream();
  const HostCopy copy = call.host_copy();
  const float* scores = call.Part<float>(call.layout.scores);
  int32_t* keep = call.Part<int32_t>(call.layout.keep);
  const SelectJob& last = jobs[jobs.size() - 1];
  if (group.Ranks()) {
    const size_t n_scores =
        last.scores - scores + uint64_t{last.keep.n_lists} * last.tokens.most;
    KV_RETURN_IF_ERROR(device.read(call.context, stream, scores,
                                   n_scores * sizeof(float), copy.scores));
  }
  if (CountsByScore(call.policy) && !args.heads.Counts()) {
    KV_RETURN_IF_ERROR(call.slots.ReadNextCounts(stream));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    SelectJob& job = copy.jobs[i];
    const LayerEviction& layer = group.layers[i];
    job = jobs[i];
    if (call.plan.IsRagged()) {
      job.tokens = call.slots.HostTokens(layer.layer);
      job.keep.count = call.slots.HostNext(layer.layer, layer.n_keep);
    }
    if (job.counts != nullptr) {
      job.counts = call.slots.NextCounts(layer.layer).data();
    }
    const float* const from = job.scores != nullptr
                                  ? job.scores
                                  : reinterpret_cast<const float*>(job.keys);
    float* const row = copy.scores + (from - scores);
    job.keys = reinterpret_cast<uint32_t*>(row);
    if (job.scores != nullptr) job.scores = row;
    job.keep.slots = copy.keep + (job.keep.slots - keep);
    KV_RETURN_IF_ERROR(call.sequence.HostPositions(layer.layer, &job.slots));
    job.slots.first = layer.score.slots.first;
  }
  args.jobs = std::span<const SelectJob>(copy.jobs).first(jobs.size());
  KV_RETURN_IF_ERROR(kCpuBackend.select(call.context, stream, args));
  if (CountsByScore(call.policy))
    KV_RETURN_IF_ERROR(call.slots.SendNextCounts(stream));
  const KeepLists& lists = group.layers[jobs.size() - 1].keep;
  const size_t n_keep = lists.slots - keep + lists.n_elements();
  return device.write(call.context, stream, copy.keep, n_keep * sizeof(int32_t),
                      keep);
}

Status SelectRun(const Group& group, bool by_ranges) {
  const EvictCall& call = group.call;
  // If the best were pinned or layers compete, the length of each list is known
  // already.
  const bool is_counted = call.plan.PinsBest() || LayersCompete(call.policy);
  SelectArgs args =
      group.ArgsFor(group.selects(), is_counted ? HeadSplit() : group.Split());
  if (!by_ranges) args.ranges = {};
  if (call.selects_on_host()) return SelectOnHost(group, args);
  if (!group.ShapesAndSelects()) {
    return call.backend().select(call.context, call.stream(), args);
  }
  return call.backend().shape_and_select(
      call.context, call.stream(),
      {{call.plan.ShapingOf(group.First()), group.First().geometry.n_kv_heads,
        group.All(&LayerEviction::shape), group.scratch()},
       args});
}

// Rescued blocks stay whatever their rank, so ranges are not applied to layers
// with some.
Status Select(Group& group) {
  const std::span<LayerEviction> all = group.layers;
  const auto is_rescued = [](const LayerEviction& layer) {
    return layer.n_rescued > 0;
  };
  size_t n = all.size();
  for (size_t i = 0; i < all.size(); i += n) {
    Group run = group;
    run.layers = all.subspan(i);
    n = run.layers.size();
    if (!group.call.OneList() && RescuesBlocks(group.call.policy)) {
      n = 1;
      while (n < run.layers.size() &&
             is_rescued(run.layers[n]) == is_rescued(run.layers[0])) {
        ++n;
      }
      run.layers = run.layers.first(n);
    }
    KV_RETURN_IF_ERROR(SelectRun(run, !is_rescued(run.layers[0])));
  }
  return Status();
}

// Measures one chunk; later chunks are added to the first.
Status MeasureMass(Group& group) {
  const EvictCall& call = group.call;
  const bool adds = group.is_measured;
  group.is_measured = true;
  return call.backend().measure_mass(
      call.context, call.stream(),
      {group.selects(), adds, HasChunks(call.policy)});
}

// A stage runs if takes_part(plan), and only for groups whose tokens are ranked
// unless `always`.
struct Stage {
  bool (*takes_part)(const Plan& plan);
  Status (*run)(Group& group);
  // The scratch for n_layers with up to n_tokens at a time. Null if it needs
  // none.
  ScratchNeeds (*scratch)(const Plan& plan, uint32_t n_layers,
                          uint32_t n_tokens) = nullptr;
  bool always = false;  // runs also if nothing is ranked
};

ScratchNeeds ScratchOfScore(const Plan& plan, uint32_t n_layers,
                            uint32_t n_tokens) {
  return Larger(
      plan.NeedsOf(plan.score_op().scratch, n_layers, n_tokens),
      plan.NeedsOf(plan.context().backend().shape.scratch, n_layers, n_tokens));
}

ScratchNeeds ScratchOfSelect(const Plan& plan, uint32_t n_layers,
                             uint32_t n_tokens) {
  uint32_t most_lists = 0;
  for (uint32_t l = 0; l < plan.n_layers(); ++l) {
    most_lists = std::max(most_lists, plan.layer(l).n_lists);
  }
  return plan.context().backend().select.scratch(
      plan.context(), {n_tokens, uint64_t{n_layers} * most_lists});
}

constexpr Stage kScoreStages[] = {
    {[](const Plan&) { return true; }, Score, ScratchOfScore}};

constexpr Stage kAdjustStages[] = {
    {[](const Plan& plan) { return plan.PinsBest(); }, PinBest},
    {[](const Plan& plan) {
       return plan.AppliesWeights() && !plan.WeighsRows();
     },
     WeighShaped},
    {[](const Plan& plan) { return plan.SubtractsRedundancy(); },
     TakeOffRedundancy,
     [](const Plan& plan, uint32_t n_layers, uint32_t n_tokens) {
       return plan.NeedsOf(plan.context().backend().subtract_redundancy.scratch,
                           n_layers, n_tokens);
     }},
    {[](const Plan& plan) { return plan.Standardizes(); }, StandardizeScores},
    {[](const Plan& plan) { return plan.AddsLeverage(); }, AddKeyLeverage,
     LeverageRows::Scratch},
    {[](const Plan& plan) { return SecuresMass(plan.policy()); }, SecureMass,
     [](const Plan& plan, uint32_t n_layers, uint32_t n_tokens) {
       return plan.NeedsOf(plan.context().backend().secure_mass.scratch,
                           n_layers, n_tokens);
     }},
    {[](const Plan& plan) {
       return plan.ScalesByBestShare() && !plan.PinsBest();
     },
     ScaleByBestShare},
    {[](const Plan& plan) { return SecuresValues(plan.policy()); },
     SecureValues},
    {[](const Plan& plan) { return Draws(plan.policy()); }, DrawByScores},
    {[](const Plan& plan) { return plan.scope() != KVEVICT_SCOPE_KV_HEAD; },
     Reduce}};

constexpr Stage kContestStages[] = {
    {[](const Plan& plan) { return LayersCompete(plan.policy()); },
     CountWinners,
     [](const Plan& plan, uint32_t, uint32_t) {
       return plan.context().backend().count_winners.scratch(plan.context(),
                                                             {plan.n_lists()});
     }}};

constexpr Stage kSelectStages[] = {
    {[](const Plan& plan) { return RescuesBlocks(plan.policy()); },
     RescueBlocks},
    {[](const Plan& plan) { return DiversifiesBlocks(plan.policy()); },
     DiversifyBlocks,
     [](const Plan& plan, uint32_t n_layers, uint32_t n_tokens) {
       return plan.NeedsOf(plan.context().backend().diversify_blocks.scratch,
                           n_layers, n_tokens);
     }},
    {[](const Plan&) { return true; }, Select, ScratchOfSelect,
     /*always=*/true},
    {[](const Plan& plan) { return plan.ReportsMass(); }, MeasureMass}};

constexpr std::span<const Stage> kLists[] = {kScoreStages, kAdjustStages,
                                             kContestStages, kSelectStages};

bool OnlySelects(const Plan& plan) {
  for (const std::span<const Stage> list : kLists) {
    for (const Stage& stage : list) {
      if (stage.run == Score || stage.run == Select) continue;
      if (stage.takes_part(plan)) return false;
    }
  }
  return true;
}

}  // namespace

bool Group::ShapesAndSelects() const {
  const Plan& plan = call.plan;
  return Ranks() && OnlySelects(plan) && !call.selects_on_host() &&
         !CountsByScore(call.policy) && !MeasuresLayers(call.policy) &&
         !plan.RaisesToMean() && !plan.WeighsRows() &&
         plan.ShapingOf(First()).n_terms == 1;
}

Status RunStages(StageList list, Group& group) {
  for (const Stage& stage : kLists[static_cast<int>(list)]) {
    if (!stage.takes_part(group.call.plan)) continue;
    if (group.Ranks() || stage.always) KV_RETURN_IF_ERROR(stage.run(group));
  }
  return Status();
}

ScratchNeeds ScratchOfStages(const Plan& plan, uint32_t n_layers,
                             uint32_t n_tokens, bool scores, bool selects) {
  ScratchNeeds most;
  for (const std::span<const Stage> list : kLists) {
    if (list.data() == kContestStages && !selects) continue;
    for (const Stage& stage : list) {
      if (stage.scratch == nullptr || !stage.takes_part(plan)) continue;
      if (stage.always ? !selects : !scores) continue;
      most = Larger(most, stage.scratch(plan, n_layers, n_tokens));
    }
  }
  return most;
}

}  // namespace kvevict
