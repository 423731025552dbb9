#include "tests/gpu/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "capi/guard.h"
#include "core/plan/plan.h"
#include "core/policy/policy_text.h"
#include "core/policy/shaping.h"
#include "core/view/rope.h"
#include "cuda/launch.h"
#include "tests/gpu/random_values.h"

namespace kvevict::gpu {
namespace {

Geometry GeometryOf(const Workload& w) {
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = w.n_q_heads;
  layer.n_kv_heads = w.n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = w.head_dim;
  layer.q_dtype = w.q_dtype;
  layer.k_dtype = layer.v_dtype = w.dtype;
  return {w.n_layers, w.n_tokens, {layer}};
}

ContextHandle ContextOn(const Gpu& gpu) {
  return CreateContext(gpu.ContextOptions());
}

}  // namespace

BenchData::BenchData(const Gpu& gpu, const Workload& w, uint64_t seed)
    : workload(w),
      keys(gpu, w.n_layers * w.PlaneBytes()),
      values(gpu, w.n_layers * w.PlaneBytes()),
      queries(gpu, w.n_layers * w.WindowBytes()) {
  std::vector<uint8_t> host(std::max(w.PlaneBytes(), w.WindowBytes()));
  for (uint32_t l = 0; l < w.n_layers; ++l) {
    FillWithValues(seed + l, w.dtype, host.size() / w.element(), host.data());
    keys.Write(host.data(), w.PlaneBytes(), l * w.PlaneBytes());
    values.Write(host.data(), w.PlaneBytes(), l * w.PlaneBytes());
    FillWithValues(seed + l, w.q_dtype, w.WindowBytes() / w.query_element(),
                   host.data());
    queries.Write(host.data(), w.WindowBytes(), l * w.WindowBytes());
  }
}

static Policy CorePolicy(const std::string& text) {
  Policy policy;
  Check(kvevict::ParsePolicy(text, &policy).code());
  return policy;
}

Bench::Bench(const Gpu& gpu, const BenchData& data, uint32_t window,
             bool has_lse, const char* shaping)
    : gpu_(gpu),
      geometry_(GeometryOf(data.workload)),
      policy_text_(fmt::format("snapkv:budget={},window={},{}",
                               data.workload.budget, window, shaping)),
      policy_(CorePolicy(policy_text_)),
      context_(ContextOn(gpu)),
      staged_query_(gpu, data.workload.WindowBytes() / data.workload.window),
      row_lse_(gpu, uint64_t{4} * data.workload.n_q_heads * window),
      scores_(gpu, uint64_t{4} * data.workload.n_layers *
                       data.workload.n_kv_heads * data.workload.n_tokens),
      first_scores_(gpu, scores_.n_bytes()),
      keep_(gpu, uint64_t{4} * data.workload.n_layers *
                     data.workload.n_kv_heads * data.workload.budget),
      score_scratch_(gpu, backend()
                              .score_window
                              ->scratch(context(), {layer(), policy_,
                                                    data.workload.n_layers,
                                                    data.workload.n_tokens})
                              .best.value()),
      select_scratch_(
          gpu, backend()
                   .select
                   .scratch(context(), {data.workload.n_tokens,
                                        uint64_t{data.workload.n_layers} *
                                            data.workload.n_kv_heads})
                   .best.value()),
      move_scratch_(gpu,
                    2 * data.workload.PlaneBytes()),  // enough for any move
      ring_(gpu, uint64_t{4} * data.workload.budget),
      views_(data.workload.n_layers, KVEVICT_VIEW_INIT),
      layers_(data.workload.n_layers) {
  const Workload& w = data.workload;
  // Rows of small logits have about this.
  const std::vector<float> lse(row_lse_.n_bytes() / 4,
                               std::log(static_cast<float>(w.n_tokens)));
  row_lse_.Write(lse.data(), row_lse_.n_bytes());
  const int64_t row = static_cast<int64_t>(w.head_dim * w.element());
  const int64_t query_row =
      static_cast<int64_t>(w.head_dim * w.query_element());
  for (uint32_t l = 0; l < w.n_layers; ++l) {
    kvevict_view& view = views_[l];
    view.n_kv_heads = w.n_kv_heads;
    view.k.token_stride_bytes = row * w.n_kv_heads;
    view.k.head_stride_bytes = row;
    view.k.dtype = w.dtype;
    view.k.head_dim = w.head_dim;
    view.v = view.k;
    view.k.data = data.keys.address() + l * w.PlaneBytes();
    view.v.data = data.values.address() + l * w.PlaneBytes();
    LayerEviction& layer = layers_[l];
    float* const scores =
        scores_.pointer<float>() + uint64_t{l} * w.n_kv_heads * w.n_tokens;
    const KeepLists keep = KeepLists::Packed(
        keep_.pointer<int32_t>() + uint64_t{l} * w.n_kv_heads * w.budget,
        w.n_kv_heads, w.budget);
    layer.score.layer = l;
    layer.score.tokens = w.n_tokens;
    layer.score.view = &view;
    layer.score.rows = scores;
    QueryRows& queries = layer.score.queries;
    queries.rows.base = data.queries.pointer<uint8_t>() + l * w.WindowBytes();
    queries.rows.row_stride = query_row * w.n_q_heads;
    queries.rows.element_stride = static_cast<int64_t>(w.query_element());
    queries.rows.dtype = static_cast<DType>(w.q_dtype);
    queries.head_stride = query_row;
    queries.n_rows = window;
    queries.lse = has_lse ? row_lse_.pointer<float>() : nullptr;
    queries.lse_row_stride = 4;
    queries.lse_head_stride = int64_t{4} * window;
    layer.shape.scored = &layer.score;
    layer.shape.rows = layer.shape.scores = scores;
    layer.select = {
        w.n_tokens, scores, reinterpret_cast<uint32_t*>(scores), keep, {}};
    layer.move = {
        .view = &view, .tokens = w.n_tokens, .keep = keep, .merge = {}};
  }
  std::vector<int32_t> ring(w.budget);
  std::iota(ring.begin(), ring.end(), 0);
  std::rotate(ring.begin(), ring.begin() + w.budget / 2, ring.end());
  ring_.Write(ring.data(), ring_.n_bytes());
  const PlanHandle plan =
      CreatePlan(context_.get(), geometry_, ParsePolicy(policy_text_));
  Check(kvevict_context_prepare(context_.get(), plan.get()));
}

void Bench::Score(Jobs<ScoreJob> jobs) const {
  const Rope rope(context());
  Check(backend()
            .score_window
            ->run(context(), gpu_.stream(),
                  {layer(), policy_, rope, 0.088f, false, geometry_.max_tokens,
                   jobs, Scratch(score_scratch_)})
            .code());
}

// Scores as an engine without a batched scorer does: every captured query of
// every layer is copied to where the kernel reads it, and launched alone.
void Bench::ScoreQueryByQuery(uint32_t n_queries) const {
  for (const LayerEviction& layer : layers_) {
    ScoreJob job = layer.score;
    job.queries.rows.base = staged_query_.pointer<uint8_t>();
    for (uint32_t query = 0; query < n_queries; ++query) {
      const uint64_t from = cuda::AddressOf(layer.score.queries.rows.base) +
                            query * staged_query_.n_bytes();
      Check(gpu_.driver(),
            gpu_.driver().cuMemcpyDtoDAsync(staged_query_.address(), from,
                                            staged_query_.n_bytes(),
                                            gpu_.stream()),
            "cuMemcpyDtoDAsync");
      Score(Jobs<ScoreJob>(job));
    }
  }
}

ShapeArgs Bench::ShapeOfAll() const {
  return {MakeShaping(policy_, InfoOf(Signal::kWindowAttention),
                      layer().n_q_heads / layer().n_kv_heads),
          layer().n_kv_heads,
          JobsOf(&LayerEviction::shape),
          {}};
}

SelectArgs Bench::SelectionOfAll() const {
  return {.jobs = JobsOf(&LayerEviction::select),
          .tie = policy_.tie,
          .forced = {policy_.sink.count, policy_.window.count, {}},
          .scratch = Scratch(select_scratch_),
          .heads = {}};
}

void Bench::Pool() const {
  Check(backend().shape(context(), gpu_.stream(), ShapeOfAll()).code());
}

void Bench::PoolAndSelect() const {
  Check(backend()
            .shape_and_select(context(), gpu_.stream(),
                              {ShapeOfAll(), SelectionOfAll()})
            .code());
}

void Bench::CopyScores(const Buffer& from, const Buffer& to) const {
  Check(gpu_.driver(),
        gpu_.driver().cuMemcpyDtoDAsync(to.address(), from.address(),
                                        from.n_bytes(), gpu_.stream()),
        "cuMemcpyDtoDAsync");
}

void Bench::Select() const {
  Check(backend().select(context(), gpu_.stream(), SelectionOfAll()).code());
}

void Bench::Compact() const {
  Check(backend()
            .compact(context(), gpu_.stream(),
                     {JobsOf(&LayerEviction::move), Scratch(move_scratch_)})
            .code());
}

void Bench::CompactIn(cuda::CompactForm form) const {
  Check(cuda::CompactIn(form, context(), gpu_.stream(),
                        {JobsOf(&LayerEviction::move), Scratch(move_scratch_)})
            .code());
}

void Bench::Reorder() const {
  for (const LayerEviction& layer : layers_) {
    MoveJob job = layer.move;
    job.keep.n_lists = 1;
    job.keep.slots = ring_.pointer<int32_t>();
    Check(backend()
              .reorder(context(), gpu_.stream(),
                       {Jobs<MoveJob>(job), Scratch(move_scratch_)})
              .code());
  }
}

}  // namespace kvevict::gpu
