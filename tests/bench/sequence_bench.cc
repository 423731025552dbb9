// The cost of a request: its state, its observed queries, its eviction.
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/bench/plans.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

constexpr double kMinSeconds = 3e-3;

PlanHandle MakePlan(const kvevict_context* context, const Workload& w,
                    uint32_t n_layers) {
  return CreatePlan(context, n_layers,
                    LayerOf(w.n_q_heads, w.n_kv_heads, w.head_dim), w.n_tokens,
                    fmt::format("snapkv:budget={},sink=4,window={},pool=avg7",
                                w.budget, w.window));
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
  const SequenceHandle sequence = CreateSequence(plan.get());
  Repeat(session, [&](bool measured) {
    const Timing timing =
        TimeCalls([&] { CreateSequence(plan.get()); }, kMinSeconds);
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
        sequence_(CreateSequence(plan_.get())),
        evicting_(plan_.get(), KVEVICT_OPERATION_EVICT),
        scoring_(plan_.get(), KVEVICT_OPERATION_SCORE),
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
        *plane = RowsOf(rows.data(), w.n_kv_heads, w.head_dim);
      }
      views_.push_back(view);
    }
    query_rows_ = RowsOf(queries_.data(), w.n_q_heads, w.head_dim);
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
                                 nullptr, evicting_.data(), evicting_.bytes,
                                 nullptr));
  }

  // Scores all layers by kvevict_score().
  void Score() {
    Check(kvevict_score(plan_.get(), jobs_.data(), jobs_.size(),
                        scoring_.data(), scoring_.bytes, nullptr));
  }

 private:
  const Workload w_;
  const ContextHandle context_;
  const PlanHandle plan_;
  const SequenceHandle sequence_;
  const Workspace evicting_, scoring_;
  const AttentionData data_;
  HugeBuffer<float> queries_;
  HugeBuffer<float> scores_;
  std::vector<HugeBuffer<float>> caches_;
  std::vector<kvevict_view> views_;
  kvevict_plane query_rows_;
  kvevict_signal_inputs inputs_ = KVEVICT_SIGNAL_INPUTS_INIT;
  std::vector<kvevict_observation> observations_;
  std::vector<kvevict_score_job> jobs_;
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
