#include "core/score.h"

#include <algorithm>

#include "core/view.h"

namespace kvevict {
namespace {

ScoreArgs ArgsOf(const Plan& plan, const PlanLayer& layer, uint32_t n_tokens,
                 Jobs<ScoreJob> jobs, std::span<uint8_t> scratch) {
  return {layer.geometry,
          plan.policy(),
          layer.softmax_scale(),
          plan.ShapingOf(layer).n_terms > 1,
          n_tokens,
          jobs,
          scratch};
}

// ScoreAndShape() of jobs whose layers are alike.
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
    if (!shaping.IsIdentity()) {
      KV_RETURN_IF_ERROR(context.backend().shape(
          context, stream,
          {shaping, layer.geometry.n_kv_heads, shapes.first(n), scratch}));
    }
    shapes = shapes.subspan(n);
  }
  return Status();
}

}  // namespace

QueryRows QueriesOf(const LayerInputs& inputs) {
  const kvevict_plane& queries = *inputs.queries;
  QueryRows rows;
  rows.rows.base = reinterpret_cast<const uint8_t*>(queries.data);
  rows.rows.row_stride = queries.token_stride_bytes;
  rows.rows.element_stride = ElementStride(queries);
  rows.rows.dtype = static_cast<DType>(queries.dtype);
  rows.head_stride = queries.head_stride_bytes;
  if (inputs.row_lse != nullptr) {
    rows.lse = reinterpret_cast<const float*>(inputs.row_lse->data);
    rows.lse_row_stride = inputs.row_lse->token_stride_bytes;
    rows.lse_head_stride = inputs.row_lse->head_stride_bytes;
  }
  return rows;
}

Status FindScores(const kvevict_layer_geometry& layer, uint32_t n_tokens,
                  const kvevict_plane& scores, ScoreJob* out) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(float));
  KV_RETURN_IF_ERROR(ValidateRows("scores", scores, KVEVICT_DTYPE_F32, 1,
                                  layer.n_kv_heads, n_tokens));
  if (n_tokens > 1 && scores.token_stride_bytes != kElement) {
    return InvalidArgument("scores.token_stride_bytes %lld is not %lld",
                           static_cast<long long>(scores.token_stride_bytes),
                           static_cast<long long>(kElement));
  }
  const int64_t row = scores.head_stride_bytes;
  if (layer.n_kv_heads > 1 &&
      (row < n_tokens * kElement || row % kElement != 0)) {
    return InvalidArgument(
        "scores.head_stride_bytes %lld is not a multiple of %lld, at least %u "
        "times that",
        static_cast<long long>(row), static_cast<long long>(kElement),
        n_tokens);
  }
  if (scores.data % sizeof(float) != 0) {
    return InvalidArgument("scores.data 0x%llx is not aligned to %zu",
                           static_cast<unsigned long long>(scores.data),
                           sizeof(float));
  }
  out->caller = reinterpret_cast<const float*>(scores.data);
  out->caller_head_stride = static_cast<uint64_t>(row) / sizeof(float);
  return Status();
}

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
                    Jobs<uint32_t> layers, Jobs<ScoreJob> scores) {
  if (plan.score_op().check == nullptr) return Status();
  while (!layers.empty()) {
    const PlanLayer& layer = plan.layer(layers[0]);
    const size_t n = CountAlike(plan, layers);
    KV_RETURN_IF_ERROR(plan.score_op().check(
        plan.context(), stream,
        ArgsOf(plan, layer, n_tokens, scores.first(n), {})));
    layers = layers.subspan(n);
    scores = scores.subspan(n);
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

}  // namespace kvevict
