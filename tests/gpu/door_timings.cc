#include "tests/gpu/door_timings.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kvevict/attention.h"
#include "tests/gpu/doors.h"

namespace kvevict::gpu {
namespace {

// The last queries and the caches of all layers, as the doors take them.
class Model {
 public:
  Model(const Gpu& gpu, const Effort& effort, const Stopwatch& watch,
        const char* name, const Workload& w, const Limits& limits,
        nlohmann::json* rows)
      : gpu_(gpu),
        watch_(watch),
        name_(name),
        w_(w),
        limits_(limits),
        rows_(rows),
        data_(gpu, w, effort.seed),
        context_(CreateContext(gpu.ContextOptions())),
        views_(w.n_layers, KVEVICT_VIEW_INIT),
        queries_(w.n_layers) {
    const int64_t row = static_cast<int64_t>(w.head_dim * w.element());
    kvevict_plane plane{};
    plane.dtype = w.dtype;
    plane.head_dim = w.head_dim;
    plane.head_stride_bytes = row;
    const int64_t query_row =
        static_cast<int64_t>(w.head_dim * w.query_element());
    for (uint32_t l = 0; l < w.n_layers; ++l) {
      queries_[l] = plane;
      queries_[l].dtype = w.q_dtype;
      queries_[l].head_stride_bytes = query_row;
      queries_[l].token_stride_bytes = query_row * w.n_q_heads;
      queries_[l].data = data_.queries.address() + l * w.WindowBytes();
      kvevict_view& view = views_[l];
      view.n_kv_heads = w.n_kv_heads;
      view.k = plane;
      view.k.token_stride_bytes = row * w.n_kv_heads;
      view.v = view.k;
      view.k.data = data_.keys.address() + l * w.PlaneBytes();
      view.v.data = data_.values.address() + l * w.PlaneBytes();
    }
  }

  void TimeSignals() const {
    for (const char* signal : {"knorm", "keydiff", "lagkv", "cur", "tova"}) {
      TimeSignal(signal, w_.n_layers);
    }
    TimeSignal("r-kv", 1);
  }

  void TimeAttention() const {
    const uint64_t of_cache = 2 * w_.n_layers * w_.PlaneBytes();
    Add("attend, 1 query", Attend(w_.n_layers, w_.n_tokens, 1), of_cache,
        Flops(w_.n_layers, w_.n_tokens, 1));
    Add("attend, 16 queries", Attend(w_.n_layers, w_.n_tokens, 16), of_cache,
        Flops(w_.n_layers, w_.n_tokens, 16));
    Add("attend, a window of queries",
        Attend(w_.n_layers, w_.n_tokens, w_.window), of_cache,
        Flops(w_.n_layers, w_.n_tokens, w_.window));
    // As a model decodes: a call for each layer, in the stream's order.
    for (const uint32_t n_tokens : {w_.budget, w_.n_tokens}) {
      for (const uint32_t n_queries : {1u, 4u}) {
        const std::string step = fmt::format(
            "attend layer by layer, {} slots, {} queries", n_tokens, n_queries);
        Add(step.c_str(),
            Attend(w_.n_layers, n_tokens, n_queries, /*by_layer=*/true),
            of_cache / w_.n_tokens * n_tokens,
            Flops(w_.n_layers, n_tokens, n_queries));
      }
    }
  }

  // Times a step's attention over the budget's slots, and the eviction after it.
  void TimeDecoding() const {
    const uint64_t of_cache =
        2 * w_.n_layers * w_.PlaneBytes() / w_.n_tokens * w_.budget;
    const Spread attention = Attend(w_.n_layers, w_.budget, 1);
    Add("attend, 1 query, over the budget", attention, of_cache,
        Flops(w_.n_layers, w_.budget, 1));
    for (const uint32_t margin : {0u, w_.budget / 16 - 1}) {
      for (const char* policy : {"tova", "streaming-llm", "knorm"}) {
        const Spread ms = Evict(policy, margin);
        const std::string step =
            fmt::format("decode: {}, every {} steps", policy, margin + 1);
        Add(step.c_str(), ms, 0, 0);
        rows_->back()["of_attention"] =
            ms.median / (margin + 1) / attention.median;
        fmt::print("    a step: {:.3f} of its attention\n",
                   ms.median / (margin + 1) / attention.median);
      }
    }
  }

 private:
  void Add(const char* step, const Spread& ms, uint64_t bytes,
           uint64_t flops) const {
    AddRow(rows_, fmt::format("{}: {}", name_, step), ms, bytes, flops,
           limits_);
  }
  uint64_t Flops(uint32_t n_layers, uint64_t n_tokens,
                 uint64_t n_queries) const {
    return 4 * n_layers * w_.n_q_heads * n_queries * n_tokens * w_.head_dim;
  }

  PlanHandle Plan(const std::string& policy, uint32_t max_tokens) const {
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = w_.n_q_heads;
    layer.n_kv_heads = w_.n_kv_heads;
    layer.k_head_dim = layer.v_head_dim = w_.head_dim;
    layer.q_dtype = w_.q_dtype;
    layer.k_dtype = layer.v_dtype = w_.dtype;
    return CreatePlan(context_.get(), {w_.n_layers, max_tokens, {layer}},
                      ParsePolicy(policy));
  }

  void TimeSignal(const char* signal, uint32_t n_layers) const {
    const std::string policy = fmt::format("{}:budget={}", signal, w_.budget);
    const PlanHandle plan = Plan(policy, w_.n_tokens);
    Check(kvevict_context_prepare(context_.get(), plan.get()));
    const uint64_t n_scores = uint64_t{w_.n_kv_heads} * w_.n_tokens;
    const Buffer scores(gpu_, n_layers * n_scores * sizeof(float));
    const Buffer workspace(gpu_,
                           WorkspaceBytes(plan.get(), KVEVICT_OPERATION_SCORE));
    std::vector<kvevict_signal_inputs> inputs(n_layers,
                                              KVEVICT_SIGNAL_INPUTS_INIT);
    std::vector<kvevict_score_job> jobs(n_layers, KVEVICT_SCORE_JOB_INIT);
    for (uint32_t l = 0; l < n_layers; ++l) {
      inputs[l].queries = &queries_[l];
      jobs[l].layer = l;
      jobs[l].n_tokens = w_.n_tokens;
      jobs[l].view = &views_[l];
      jobs[l].inputs = &inputs[l];
      jobs[l].scores = scores.pointer<float>() + l * n_scores;
      jobs[l].scores_len = n_scores;
    }
    const Spread ms = watch_.Measure([&] {
      Check(kvevict_score(plan.get(), jobs.data(), jobs.size(),
                          workspace.pointer<void>(), workspace.n_bytes(),
                          gpu_.stream()));
    });
    const std::string step =
        fmt::format("score by {}, {} layers", signal, n_layers);
    Add(step.c_str(), ms, n_layers * w_.PlaneBytes() + scores.n_bytes(), 0);
  }

  Spread Attend(uint32_t n_layers, uint32_t n_tokens, uint32_t n_queries,
                bool by_layer = false) const {
    const Buffer out(gpu_, w_.n_layers * w_.WindowBytes());
    std::vector<kvevict_plane> outs = queries_;
    std::vector<kvevict_attention_job> jobs(n_layers,
                                            KVEVICT_ATTENTION_JOB_INIT);
    for (uint32_t l = 0; l < n_layers; ++l) {
      outs[l].data = out.address() + l * w_.WindowBytes();
      jobs[l].n_tokens = n_tokens;
      jobs[l].view = &views_[l];
      jobs[l].queries = &queries_[l];
      jobs[l].out = &outs[l];
      jobs[l].n_q_heads = w_.n_q_heads;
      jobs[l].n_queries = n_queries;
    }
    kvevict_workspace bytes = KVEVICT_WORKSPACE_INIT;
    Check(kvevict_attend_workspace(context_.get(), jobs.data(), jobs.size(),
                                   &bytes));
    const Buffer workspace(gpu_, bytes.best_bytes);
    const size_t n_at_once = by_layer ? 1 : n_layers;
    const auto attend = [&] {
      for (size_t l = 0; l < n_layers; l += n_at_once) {
        Check(kvevict_attend(context_.get(), &jobs[l], n_at_once,
                             workspace.pointer<void>(), workspace.n_bytes(),
                             gpu_.stream()));
      }
    };
    attend();  // compiles
    return watch_.Measure(attend);
  }

  Spread Evict(const std::string& policy, uint32_t margin) const {
    const PlanHandle plan =
        Plan(fmt::format("{}:budget={},margin={}", policy, w_.budget, margin),
             w_.budget + margin + 1);
    Check(kvevict_context_prepare(context_.get(), plan.get()));
    const SequenceHandle sequence = CreateSequence(plan.get());
    const Buffer workspace(gpu_,
                           WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT));
    LayerInputs inputs;
    for (const kvevict_plane& queries : queries_) inputs.AddWindow(queries);
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    inputs.Lend(&options);
    Check(kvevict_sequence_append(sequence.get(), w_.budget, gpu_.stream()));
    return watch_.MeasureQueued(
        [&] {
          Check(kvevict_sequence_evict(
              sequence.get(), views_.data(), views_.size(), &options,
              workspace.pointer<void>(), workspace.n_bytes(), gpu_.stream()));
        },
        [&] {
          Check(kvevict_sequence_append(sequence.get(), margin + 1,
                                        gpu_.stream()));
        });
  }

  const Gpu& gpu_;
  const Stopwatch& watch_;
  const char* const name_;
  const Workload w_;
  const Limits limits_;
  nlohmann::json* const rows_;
  const BenchData data_;
  const ContextHandle context_;
  std::vector<kvevict_view> views_;
  std::vector<kvevict_plane> queries_;
};

}  // namespace

void TimeDoors(const Gpu& gpu, const Effort& effort, const Stopwatch& watch,
               const char* name, const Workload& w, const Limits& limits,
               nlohmann::json* rows) {
  const Model model(gpu, effort, watch, name, w, limits, rows);
  model.TimeSignals();
  model.TimeAttention();
  model.TimeDecoding();
}

}  // namespace kvevict::gpu
