// What an eviction checks before the first byte moves.
#include <algorithm>

#include "core/evict/call.h"
#include "core/number_text.h"
#include "core/signals/score.h"
#include "core/signals/signal_inputs.h"
#include "core/view/view.h"

namespace kvevict {

// `what` names an option that requires rows to move one by one.
Status CheckMoveByRow(const EvictCall& call, const char* what) {
  for (const LayerEviction& layer : call.active) {
    const Status status = CheckMovesByRow(call.views()[layer.layer]);
    if (status.ok()) continue;
    return Prefixed(status, "%s: views[%u]: ", what,
                    call.plan.layer(layer.layer).number);
  }
  return Status();
}

namespace {

// Rows that move must move once, by one list, and no view outside the call may
// share them.
Status CheckSharing(const EvictCall& call) {
  if (call.HasDestinations()) return Status();
  for (const LayerEviction& layer : call.active) {
    if (!call.WritesViews()) break;
    Status status = CheckNotShared(call.views()[layer.layer], 0);
    if (status.ok()) continue;
    return Prefixed(status, "views[%u]: ", call.plan.layer(layer.layer).number);
  }
  KV_RETURN_IF_ERROR(CheckApart("views", call.caches()));
  if (call.plan.LayersKeepAlike()) return Status();
  for (uint32_t l = 0; l < call.plan.n_layers(); ++l) {
    const uint64_t shared = call.Cache(l).shared_companions;
    if (call.Cache(l).owner != l || shared == 0) continue;
    return SharesCompanion(call.caches(), l, shared,
                           "layers that keep different tokens cannot share it");
  }
  return Status();
}

// Recent rows begin at the same slot in every head, so heads cannot keep
// different numbers.
Status CheckNoneRecent(const EvictCall& call) {
  for (const LayerEviction& layer : call.active) {
    const kvevict_view& view = call.views()[layer.layer];
    if (call.HasDestinations() || FirstRecent(view) == UINT32_MAX) continue;
    return InvalidArgument(
        "views[%u]: companions: there are recent rows, but heads keep "
        "different numbers of tokens",
        call.plan.layer(layer.layer).number);
  }
  return Status();
}

// Uses the sums or scores that the sequence has, unless the caller gives some,
// or queries in place of sums.
Status FindObserved(const EvictCall& call, LayerEviction* layer,
                    LayerInputs* inputs, kvevict_plane* plane) {
  const SumTable& sums = call.sequence.sums();
  const bool are_scores = call.plan.ObservesScores();
  const kvevict_plane*& rows =
      are_scores ? inputs->scores : inputs->attention_sums;
  if (rows != nullptr || (!are_scores && inputs->queries != nullptr) ||
      !sums.Has(layer->layer)) {
    return Status();
  }
  KV_RETURN_IF_ERROR(
      sums.CheckUpTo(layer->layer, call.sequence.logical_length()));
  *plane = sums.PlaneOf(layer->layer);
  rows = plane;
  inputs->n_sum_heads = call.plan.SumRowsOf(call.plan.layer(layer->layer));
  layer->score.n_summed = sums.CountOf(layer->layer);
  return Status();
}

// Blocks to rescue are marked by sums in one row of all heads.
Status CheckMarks(const EvictCall& call, const LayerEviction& layer) {
  if (!RescuesBlocks(call.policy) || !call.MarksBySums() ||
      (layer.score.n_sum_heads == 1 && layer.score.sums.data != nullptr)) {
    return Status();
  }
  return InvalidArgument(
      "rescue %u with rows mean needs attention_sums in one row of all heads, "
      "not in %u of queries or heads",
      call.policy.rescue, layer.score.n_sum_heads);
}

// Finds the query rows: the caller's, or the observed ones of the window.
Status FindQueryRows(const EvictCall& call, LayerEviction* layer) {
  const LayerInputs& inputs = call.inputs()[layer->layer];
  const PlanLayer& of_plan = call.plan.layer(layer->layer);
  if (call.signal.HasWindow() && !WindowScores(call.policy)) {
    return call.policy.keep_window
               ? call.sequence.CheckStored(layer->layer, "window",
                                           call.policy.window.count)
               : Status();
  }
  const bool observed = call.signal.HasWindow() && inputs.queries == nullptr;
  uint32_t n_rows = 0;
  Status status = FindQueryCount(call.plan, layer->n_tokens, inputs, &n_rows);
  if (!status.ok()) return Prefixed(status, "inputs[%u]: ", of_plan.number);
  if (!call.signal.Needs(kAllQueries)) {
    KV_RETURN_IF_ERROR(
        call.sequence.CheckQueries(layer->layer, n_rows, inputs));
  }
  if (observed) {
    layer->score.queries = call.sequence.WindowQueries(layer->layer);
    return Status();
  }
  status = FindQueries(call.plan, of_plan, n_rows, inputs, &layer->score);
  if (status.ok()) return status;
  return Prefixed(status, "inputs[%u]: ", of_plan.number);
}

Status CheckSignal(EvictCall& call) {
  if (DiversifiesBlocks(call.policy) && !call.ranges.all().empty()) {
    return InvalidArgument(
        "ranges with diverse_mass %s: keys alone choose the blocks beyond the "
        "mass",
        NumberText(call.policy.diverse_mass).c_str());
  }
  for (LayerEviction& layer : call.active) {
    const PlanLayer& of_plan = call.plan.layer(layer.layer);
    layer.score.layer = of_plan.number;
    layer.shape.scored = &layer.score;
    layer.score.view = &call.views()[layer.layer];
    layer.score.tokens = call.slots.DeviceTokens(layer.layer);
    layer.score.n_seen = call.sequence.logical_length();
    layer.score.n_sink = HasChunks(call.policy) ? call.policy.sink.count
                                                : call.SinkOf(layer.layer);
    layer.score.n_recent = call.forced.n_recent;
    layer.score.next_position = call.policy.rotate != 0
                                    ? layer.n_tokens
                                    : call.sequence.logical_length();
    LayerInputs inputs = call.inputs()[layer.layer];
    kvevict_plane observed;
    KV_RETURN_IF_ERROR(FindObserved(call, &layer, &inputs, &observed));
    const bool by_queries = IsScoredByQueries(call.plan, inputs);
    Status status;
    if (call.plan.ReadsRows() || by_queries) {
      status = call.plan.CheckCanScore(of_plan, by_queries);
      if (status.ok()) {
        status =
            CheckScales(*layer.score.view, call.plan.ReadsKeys() || by_queries,
                        call.plan.ReadsValues());
      }
    }
    if (status.ok()) {
      status =
          FindInputs(call.plan, of_plan, layer.n_tokens, inputs, &layer.score);
    }
    if (status.ok() && HasChunks(call.policy)) {
      status = CheckChunkRows(call, layer.layer);
    }
    if (status.ok()) status = CheckMarks(call, layer);
    if (!status.ok()) return Prefixed(status, "layer %u: ", of_plan.number);
    if (by_queries) KV_RETURN_IF_ERROR(FindQueryRows(call, &layer));
  }
  if (!call.signal.Ranks()) return Status();
  return CheckScoring(call.plan, call.stream(), call.n_at_once(),
                      Jobs<uint32_t>(call.active, &LayerEviction::layer),
                      Jobs<ScoreJob>(call.active, &LayerEviction::score),
                      Jobs<ShapeJob>(call.active, &LayerEviction::shape));
}

// Evicted rows and those they are merged into must be readable.
Status CheckMerge(EvictCall& call) {
  for (LayerEviction& layer : call.active) {
    const PlanLayer& of_plan = call.plan.layer(layer.layer);
    if (Status status = call.plan.CheckCanRewrite(of_plan); !status.ok()) {
      return Prefixed(status, "layer %u: ", of_plan.number);
    }
    layer.move.view = &call.views()[layer.layer];
    layer.move.merge = call.plan.merge();
  }
  return call.backend().merge.check(
      call.context, call.stream(),
      {Jobs<MoveJob>(call.active, &LayerEviction::move), {}});
}

// Rows whose quantization parameters are shared by a group of tokens are
// requantized in place.
Status CheckRegroup(EvictCall& call) {
  for (const LayerEviction& layer : call.active) {
    const kvevict_view& view = call.views()[layer.layer];
    MoveJob job;
    job.view = &view;
    job.change = GroupedRows(view);
    if (!job.change.any()) continue;
    const Status status = call.backend().requantize.check(
        call.context, call.stream(), {Jobs<MoveJob>(job)});
    if (status.ok()) continue;
    return Prefixed(status, "views[%u]: ", call.plan.layer(layer.layer).number);
  }
  return Status();
}

// Keys that move must be rotated to their new positions.
Status CheckRotate(EvictCall& call) {
  for (LayerEviction& layer : call.active) {
    const PlanLayer& of_plan = call.plan.layer(layer.layer);
    if (Status status = call.plan.CheckCanRotate(of_plan); !status.ok()) {
      return Prefixed(status, "layer %u: ", of_plan.number);
    }
    layer.rotate.view = &call.TargetOf(layer);
  }
  return call.backend().rotate.check(
      call.context, call.stream(),
      {Jobs<RotateJob>(call.active, &LayerEviction::rotate), call.plan.rope()});
}

}  // namespace

Status Check(EvictCall& call) {
  KV_RETURN_IF_ERROR(call.is_due ? FindBudgets(call) : FindWhole(call));
  if (call.HasDestinations()) KV_RETURN_IF_ERROR(CheckDestinations(call));
  if (!call.is_due) return Status();
  if (call.IsByTable()) KV_RETURN_IF_ERROR(CheckTables(call));
  if (FitsValues(call.policy)) KV_RETURN_IF_ERROR(CheckCanFit(call));
  KV_RETURN_IF_ERROR(CheckSignal(call));
  if (!call.LosesTokens()) return Status();
  if (HasChunks(call.policy)) KV_RETURN_IF_ERROR(CheckMoveByRow(call, "chunk"));
  if (call.plan.IsRagged()) KV_RETURN_IF_ERROR(CheckNoneRecent(call));
  if (call.plan.merge().Merges()) KV_RETURN_IF_ERROR(CheckMerge(call));
  if (FitsValues(call.policy)) KV_RETURN_IF_ERROR(CheckFit(call));
  if (call.policy.rotate != 0) KV_RETURN_IF_ERROR(CheckRotate(call));
  if (!call.HasDestinations()) KV_RETURN_IF_ERROR(CheckRegroup(call));
  if (call.options.undo != nullptr) KV_RETURN_IF_ERROR(CheckUndo(call));
  KV_RETURN_IF_ERROR(CheckSharing(call));
  return call.backend().check_capture(call.context, call.stream(), call.policy,
                                      !call.ranges.all().empty(),
                                      call.plan.ReportsMass());
}

}  // namespace kvevict
