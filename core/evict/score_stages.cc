// Stages that compute scores and change them.
#include <algorithm>

#include "core/evict/stages.h"
#include "core/signals/score.h"

namespace kvevict {
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

}  // namespace

const Stage kScore = {
    [](const Plan&) { return true; }, Score,
    [](const Plan& plan, uint32_t n_layers, uint32_t n_tokens) {
      return Larger(plan.NeedsOf(plan.score_op().scratch, n_layers, n_tokens),
                    plan.NeedsOf(plan.context().backend().shape.scratch,
                                 n_layers, n_tokens));
    }};

const Stage kApplyWeights = {[](const Plan& plan) {
                               return plan.AppliesWeights() &&
                                      !plan.WeighsRows();
                             },
                             WeighShaped};

const Stage kSubtractRedundancy = {
    [](const Plan& plan) { return plan.SubtractsRedundancy(); },
    TakeOffRedundancy,
    [](const Plan& plan, uint32_t n_layers, uint32_t n_tokens) {
      return plan.NeedsOf(plan.context().backend().subtract_redundancy.scratch,
                          n_layers, n_tokens);
    }};

const Stage kStandardize = {
    [](const Plan& plan) { return plan.Standardizes(); }, StandardizeScores};

const Stage kAddLeverage = {
    [](const Plan& plan) { return plan.AddsLeverage(); }, AddKeyLeverage,
    LeverageRows::Scratch};

const Stage kSecureMass = {
    [](const Plan& plan) { return SecuresMass(plan.policy()); }, SecureMass,
    [](const Plan& plan, uint32_t n_layers, uint32_t n_tokens) {
      return plan.NeedsOf(plan.context().backend().secure_mass.scratch,
                          n_layers, n_tokens);
    }};

const Stage kReduce = {
    [](const Plan& plan) { return plan.scope() != KVEVICT_SCOPE_KV_HEAD; },
    Reduce};

const Stage kDraw = {[](const Plan& plan) { return Draws(plan.policy()); },
                     DrawByScores};

}  // namespace kvevict
