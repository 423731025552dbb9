#include "core/signals/score.h"

#include <algorithm>

namespace kvevict {
namespace {

ScoreArgs ArgsOf(const Plan& plan, const PlanLayer& layer, uint32_t n_tokens,
                 Jobs<ScoreJob> jobs, std::span<uint8_t> scratch) {
  return {layer.geometry,
          plan.policy(),
          plan.rope(),
          layer.softmax_scale(),
          plan.ShapingOf(layer).n_terms > 1,
          n_tokens,
          jobs,
          scratch};
}

// ScoreAndShape() for jobs of like layers.
Status ScoreAndShapeRun(const Plan& plan, const PlanLayer& layer, Stream stream,
                        uint32_t n_tokens, Jobs<ScoreJob> scores,
                        Jobs<ShapeJob> shapes, std::span<uint8_t> scratch) {
  const Context& context = plan.context();
  const Shaping shaping = plan.ShapingOf(layer);
  const bool apart = shaping.n_terms > 1;
  while (!scores.empty()) {
    const size_t n =
        apart ? std::min<size_t>(scores.size(), kMostApart) : scores.size();
    KV_RETURN_IF_ERROR(plan.score_op().run(
        context, stream,
        ArgsOf(plan, layer, n_tokens, scores.first(n), scratch)));
    scores = scores.subspan(n);
    if (shapes.empty()) continue;
    if (plan.WeighsRows()) {
      KV_RETURN_IF_ERROR(context.backend().apply_weights(
          context, stream, {layer.geometry, plan.policy(), shapes.first(n)}));
    }
    if (!shaping.IsIdentity()) {
      KV_RETURN_IF_ERROR(context.backend().shape(
          context, stream,
          {shaping, layer.geometry.n_kv_heads, shapes.first(n), scratch}));
    }
    if (plan.RaisesToMean()) {
      KV_RETURN_IF_ERROR(context.backend().raise_to_mean(
          context, stream,
          {layer.geometry, shaping.n_unpooled, shapes.first(n)}));
    }
    shapes = shapes.subspan(n);
  }
  return Status();
}

// f32 [n_heads, n_tokens], up to where the next row may begin.
CheckedSize RowsBytes(uint32_t n_heads, uint32_t n_tokens) {
  return (CheckedSize(n_heads) * CheckedSize(n_tokens) *
          CheckedSize(sizeof(float)))
      .AlignUp(64);
}

// Calls run(layer, jobs) for runs of like layers.
template <typename Run>
Status ForEachAlike(const Plan& plan, Jobs<uint32_t> layers,
                    Jobs<ShapeJob> shapes, const Run& run) {
  while (!layers.empty()) {
    const size_t n = CountAlike(plan, layers);
    KV_RETURN_IF_ERROR(run(plan.layer(layers[0]), shapes.first(n)));
    layers = layers.subspan(n);
    shapes = shapes.subspan(n);
  }
  return Status();
}

}  // namespace

float* ApartRows::Next(const PlanLayer& layer, uint32_t n_tokens,
                       float* scores) {
  const bool goes_on = last_ != nullptr && AreAlike(layer, *last_);
  last_ = &layer;
  if (plan_.ShapingOf(layer).n_terms == 1) return scores;
  n_ = goes_on ? n_ % kMostApart : 0;
  if (n_++ == 0) next_ = first_;
  float* const rows = next_;
  next_ += uint64_t{layer.geometry.n_q_heads} * n_tokens;
  return rows;
}

size_t CountAlike(const Plan& plan, Jobs<uint32_t> layers) {
  size_t n = 1;
  while (n < layers.size() &&
         AreAlike(plan.layer(layers[n]), plan.layer(layers[0]))) {
    ++n;
  }
  return n;
}

Status CheckScoring(const Plan& plan, Stream stream, uint32_t n_tokens,
                    Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                    Jobs<ShapeJob> shapes) {
  const Context& context = plan.context();
  const Backend& backend = context.backend();
  while (!layers.empty()) {
    const PlanLayer& layer = plan.layer(layers[0]);
    const size_t n = CountAlike(plan, layers);
    const Jobs<ShapeJob> alike = shapes.first(n);
    KV_RETURN_IF_ERROR(plan.score_op().check(
        context, stream, ArgsOf(plan, layer, n_tokens, scores.first(n), {})));
    if (plan.RaisesToMean()) {
      KV_RETURN_IF_ERROR(backend.raise_to_mean.check(
          context, stream, {layer.geometry, 0, alike}));
    }
    if (plan.AppliesWeights()) {
      KV_RETURN_IF_ERROR(backend.apply_weights.check(
          context, stream, {layer.geometry, plan.policy(), alike}));
    }
    if (SecuresMass(plan.policy())) {
      KV_RETURN_IF_ERROR(backend.secure_mass.check(
          context, stream, {layer.geometry, plan.policy(), {}, {}}));
    }
    if (SecuresValues(plan.policy())) {
      KV_RETURN_IF_ERROR(backend.measure_values.check(
          context, stream, {layer.geometry, plan.policy(), alike}));
    }
    if (Draws(plan.policy())) {
      KV_RETURN_IF_ERROR(backend.draw.check(
          context, stream, {layer.geometry, plan.policy().seed, alike}));
    }
    if (plan.SubtractsRedundancy()) {
      KV_RETURN_IF_ERROR(backend.subtract_redundancy.check(
          context, stream,
          {layer.geometry, plan.policy(), n_tokens, alike, {}}));
    }
    if (plan.Standardizes() || plan.AddsLeverage()) {
      KV_RETURN_IF_ERROR(backend.standardize.check(
          context, stream, {layer.geometry, plan.AddsLeverage(), alike}));
    }
    if (plan.AddsLeverage()) {
      KV_RETURN_IF_ERROR(backend.score_leverage->check(
          context, stream, ArgsOf(plan, layer, n_tokens, scores.first(n), {})));
    }
    if (DiversifiesBlocks(plan.policy())) {
      KV_RETURN_IF_ERROR(backend.diversify_blocks.check(
          context, stream, {{}, layer.geometry, 0.0f, n_tokens, alike, {}}));
    }
    layers = layers.subspan(n);
    scores = scores.subspan(n);
    shapes = shapes.subspan(n);
  }
  return Status();
}

Status ScoreAndShape(const Plan& plan, Stream stream, uint32_t n_tokens,
                     Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                     Jobs<ShapeJob> shapes, std::span<uint8_t> scratch) {
  while (!layers.empty()) {
    const size_t n = CountAlike(plan, layers);
    KV_RETURN_IF_ERROR(ScoreAndShapeRun(
        plan, plan.layer(layers[0]), stream, n_tokens, scores.first(n),
        shapes.empty() ? shapes : shapes.first(n), scratch));
    layers = layers.subspan(n);
    scores = scores.subspan(n);
    if (!shapes.empty()) shapes = shapes.subspan(n);
  }
  return Status();
}

Status ApplyWeights(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
                    Jobs<ShapeJob> shapes) {
  const Context& context = plan.context();
  return ForEachAlike(
      plan, layers, shapes, [&](const PlanLayer& layer, Jobs<ShapeJob> alike) {
        return context.backend().apply_weights(
            context, stream, {layer.geometry, plan.policy(), alike});
      });
}

Status SubtractRedundancy(const Plan& plan, Stream stream, uint32_t n_tokens,
                          Jobs<uint32_t> layers, Jobs<ShapeJob> shapes,
                          std::span<uint8_t> scratch) {
  const Context& context = plan.context();
  return ForEachAlike(
      plan, layers, shapes, [&](const PlanLayer& layer, Jobs<ShapeJob> alike) {
        return context.backend().subtract_redundancy(
            context, stream,
            {layer.geometry, plan.policy(), n_tokens, alike, scratch});
      });
}

float BlendOf(const Policy& policy, double budget) {
  const double evicted = 1.0 - std::min(budget, 1.0);
  return static_cast<float>(
      policy.leverage *
      (policy.leverage_scale == LeverageScale::kEvicted ? evicted : 1.0));
}

float* LeverageRows::Next(const PlanLayer& layer, uint32_t n_tokens) {
  auto* const rows = reinterpret_cast<float*>(rest_.data());
  rest_ = rest_.subspan(RowsBytes(layer.geometry.n_kv_heads, n_tokens).value());
  return rows;
}

ScratchNeeds LeverageRows::Scratch(const Plan& plan, uint32_t n_layers,
                                   uint32_t n_tokens) {
  uint32_t n_heads = 0;
  for (const PlanLayer& layer : plan.layers()) {
    n_heads = std::max(n_heads, layer.geometry.n_kv_heads);
  }
  const CheckedSize rows = CheckedSize(n_layers) * RowsBytes(n_heads, n_tokens);
  const ScratchNeeds needs = plan.NeedsOf(
      plan.context().backend().score_leverage->scratch, n_layers, n_tokens);
  return {rows + needs.least, rows + needs.best};
}

Status Standardize(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
                   Jobs<ShapeJob> shapes) {
  const Context& context = plan.context();
  return ForEachAlike(
      plan, layers, shapes, [&](const PlanLayer& layer, Jobs<ShapeJob> alike) {
        return context.backend().standardize(
            context, stream, {layer.geometry, /*adds=*/false, alike});
      });
}

Status AddLeverage(const Plan& plan, Stream stream, uint32_t n_tokens,
                   Jobs<uint32_t> layers, Jobs<ScoreJob> scores,
                   Jobs<ShapeJob> shapes, std::span<uint8_t> scratch) {
  const Context& context = plan.context();
  return ForEachAlike(
      plan, layers, shapes, [&](const PlanLayer& layer, Jobs<ShapeJob> alike) {
        ScoreArgs args =
            ArgsOf(plan, layer, n_tokens, scores.first(alike.size()), scratch);
        args.per_query_head = false;
        scores = scores.subspan(alike.size());
        KV_RETURN_IF_ERROR(
            context.backend().score_leverage->run(context, stream, args));
        return context.backend().standardize(
            context, stream, {layer.geometry, /*adds=*/true, alike});
      });
}

Status Draw(const Plan& plan, Stream stream, Jobs<uint32_t> layers,
            Jobs<ShapeJob> shapes) {
  const Context& context = plan.context();
  return ForEachAlike(
      plan, layers, shapes, [&](const PlanLayer& layer, Jobs<ShapeJob> alike) {
        return context.backend().draw(
            context, stream, {layer.geometry, plan.policy().seed, alike});
      });
}

}  // namespace kvevict
