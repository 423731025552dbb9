// The cost of a request: its state, its observed queries, its eviction.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

constexpr double kMinSeconds = 3e-3;

PlanHandle MakePlan(const kvevict_context* context, const Workload& w,
                    uint32_t n_layers) {
  const PolicyHandle policy = CreatePolicy(fmt::format(
      "snapkv:budget={},sink=4,window={},pool=avg7", w.budget, w.window));
  kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
  layer.n_q_heads = w.n_q_heads;
  layer.n_kv_heads = w.n_kv_heads;
  layer.k_head_dim = layer.v_head_dim = w.head_dim;
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = n_layers;
  geometry.max_tokens = w.n_tokens;
  geometry.layers = &layer;
  geometry.layers_len = 1;
  kvevict_plan* plan = nullptr;
  Check(kvevict_plan_create(context, &geometry, policy.get(), nullptr, &plan));
  return PlanHandle(plan);
}

SequenceHandle MakeSequence(const kvevict_plan* plan) {
  kvevict_sequence* sequence = nullptr;
  Check(kvevict_sequence_create(plan, &sequence));
  return SequenceHandle(sequence);
}

// A plane of packed rows, [n_rows, n_heads, head_dim].
kvevict_plane TokenMajor(const float* data, uint32_t n_heads,
                         uint32_t head_dim) {
  kvevict_plane plane = {};
  plane.data = reinterpret_cast<uintptr_t>(data);
  plane.head_stride_bytes = int64_t{head_dim} * sizeof(float);
  plane.token_stride_bytes = n_heads * plane.head_stride_bytes;
  plane.dtype = KVEVICT_DTYPE_F32;
  plane.head_dim = head_dim;
  return plane;
}

void BenchCreate(Session& session, const Workload& w, uint32_t n_layers) {
  const std::string name =
      fmt::format("sequence of {} layers, {}", n_layers, w.name);
  if (!session.wants(name)) return;
  session.announce(name);
  const ContextHandle context = CreateContext(session.simd.name);
  const PlanHandle plan = MakePlan(context.get(), w, n_layers);
  Row& row = session.report.AddRow(name + ": create, destroy", 1, "sequence/s");
  Row& borrowing =
      session.report.AddRow(name + ": begin, end observing", 1, "pair/s");
  const SequenceHandle sequence = MakeSequence(plan.get());
  Repeat(session, [&](bool measured) {
    const Timing timing =
        TimeCalls([&] { MakeSequence(plan.get()); }, kMinSeconds);
    const Timing borrowed = TimeCalls(
        [&] {
          Check(kvevict_sequence_begin_observing(sequence.get(), nullptr, 0));
          Check(kvevict_sequence_end_observing(sequence.get()));
        },
        kMinSeconds);
    if (!measured) return;
    row.Add(timing, 1);
    borrowing.Add(borrowed, 1);
  });
}

// A prompt's last rows and then the eviction, in a few layers with caches of their own.
class Request {
 public:
  Request(SimdTarget simd, const Workload& w, uint32_t n_layers)
      : w_(w),
        context_(CreateContext(simd.name)),
        plan_(MakePlan(context_.get(), w, n_layers)),
        sequence_(MakeSequence(plan_.get())),
        data_(w, DType::kF32),
        queries_(size_t{w.window} * w.n_q_heads * w.head_dim),
        scores_(size_t{n_layers} * w.n_kv_heads * w.n_tokens) {
    Check(kvevict_sequence_begin_observing(sequence_.get(), nullptr, 0));
    for (uint32_t h = 0; h < w.n_q_heads; ++h) {
      const RowSource rows = data_.Queries(h);
      for (uint32_t r = 0; r < w.window; ++r) {
        std::memcpy(&queries_[(size_t{r} * w.n_q_heads + h) * w.head_dim],
                    rows.Row(r), w.head_dim * sizeof(float));
      }
    }
    const size_t n_keys = size_t{w.n_tokens} * w.n_kv_heads * w.head_dim;
    for (uint32_t l = 0; l < n_layers; ++l) {
      kvevict_view view = KVEVICT_VIEW_INIT;
      view.n_kv_heads = w.n_kv_heads;
      for (kvevict_plane* plane : {&view.k, &view.v}) {
        const HugeBuffer<float>& rows = caches_.emplace_back(n_keys);
        std::memcpy(rows.data(), data_.Keys(KeyLayout::kTokenMajor, 0).base,
                    n_keys * sizeof(float));
        *plane = TokenMajor(rows.data(), w.n_kv_heads, w.head_dim);
      }
      views_.push_back(view);
    }
    for (kvevict_operation operation :
         {KVEVICT_OPERATION_EVICT, KVEVICT_OPERATION_SCORE}) {
      kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
      Check(kvevict_plan_workspace(plan_.get(), operation, 0, &size));
      workspace_bytes_ = std::max(workspace_bytes_, size.best_bytes);
    }
    workspace_.emplace_back(workspace_bytes_);
    query_rows_ = TokenMajor(queries_.data(), w.n_q_heads, w.head_dim);
    inputs_.queries = &query_rows_;
    for (uint32_t l = 0; l < n_layers; ++l) {
      observations_.push_back({sizeof(kvevict_observation), l, &inputs_});
      kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
      job.layer = l;
      job.n_tokens = w.n_tokens;
      job.view = &views_[l];
      job.inputs = &inputs_;
      job.scores = scores_.data() + l * scores_.size() / n_layers;
      job.scores_len = scores_.size() / n_layers;
      jobs_.push_back(job);
    }
  }

  void Observe() {
    Check(kvevict_sequence_observe(sequence_.get(), observations_.data(),
                                   observations_.size(), w_.window,
                                   w_.n_tokens - w_.window, nullptr));
  }

  // The steps before an eviction.
  void Prefill() {
    Check(kvevict_sequence_reset(sequence_.get(), nullptr));
    Observe();
    Check(kvevict_sequence_append(sequence_.get(), w_.n_tokens, nullptr));
  }

  void Evict() {
    Check(kvevict_sequence_evict(sequence_.get(), views_.data(), views_.size(),
                                 nullptr, workspace_[0].data(),
                                 workspace_bytes_, nullptr));
  }

  // Scores all layers by kvevict_score().
  void Score() {
    Check(kvevict_score(plan_.get(), jobs_.data(), jobs_.size(),
                        workspace_[0].data(), workspace_bytes_, nullptr));
  }

 private:
  const Workload w_;
  const ContextHandle context_;
  const PlanHandle plan_;
  const SequenceHandle sequence_;
  const AttentionData data_;
  HugeBuffer<float> queries_;
  HugeBuffer<float> scores_;
  std::vector<HugeBuffer<float>> caches_;
  std::vector<kvevict_view> views_;
  kvevict_plane query_rows_;
  kvevict_signal_inputs inputs_ = KVEVICT_SIGNAL_INPUTS_INIT;
  std::vector<kvevict_observation> observations_;
  std::vector<kvevict_score_job> jobs_;
  size_t workspace_bytes_ = 0;
  std::vector<HugeBuffer<uint8_t>> workspace_;
};

void BenchRequest(Session& session, const Workload& w, uint32_t n_layers) {
  const std::string name = fmt::format("request {}", w.name);
  if (!session.wants(name)) return;
  session.announce(name);
  Request request(session.simd, w, n_layers);
  const double n_bytes = static_cast<double>(w.window) * w.n_q_heads *
                         w.head_dim * sizeof(float) * n_layers;
  Row& observe = session.report.AddRow(
      fmt::format("{}: observe, {} layers", name, n_layers), 1, "byte/s");
  Comparison& memcpy_rate = observe.Against("memcpy");
  Row& evict = session.report.AddRow(
      fmt::format("{}: evict, {} layers", name, n_layers), 1, "flop/s");
  Comparison& scoring = evict.Against("time of kvevict_score()");
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.MemcpyBytes(1);
    const Timing observing = TimeCalls([&] { request.Observe(); }, kMinSeconds);
    request.Prefill();
    const Timing scored = TimeCalls([&] { request.Score(); });
    const Timing evicted = TimeCalls([&] { request.Evict(); });
    if (!measured) return;
    observe.Add(observing, n_bytes);
    memcpy_rate.ratio.Add(n_bytes / observing.cpu / limit);
    evict.Add(evicted, n_layers * w.flops());
    scoring.ratio.Add(evicted.cpu / scored.cpu);
  });
}

}  // namespace

void BenchSequence(Session& session) {
  if (session.smoke) {
    BenchCreate(session, kSmoke, 2);
    BenchRequest(session, kSmoke, 2);
    return;
  }
  BenchCreate(session, kA, 32);
  BenchRequest(session, kA, 2);
  BenchRequest(session, kC, 2);
}

}  // namespace kvevict::bench
