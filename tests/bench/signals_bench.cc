// The cost of ranking a layer's tokens by each policy's kvevict_score(), against
// reading the same part of the cache.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kvevict/experimental.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

bool Needs(const kvevict_policy* policy, kvevict_input input) {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(policy, input, &need));
  return need == KVEVICT_NEED_REQUIRED;
}

// A bf16 layer in memory, with all other inputs of signals.
class Layer {
 public:
  explicit Layer(const Workload& w)
      : w_(w),
        keys_(RowsBytes() / sizeof(uint16_t)),
        values_(RowsBytes() / sizeof(uint16_t)),
        numbers_(size_t{w.n_q_heads} *
                 std::max({w.head_dim * w.head_dim, w.n_tokens,
                           w.head_dim * w.n_tokens})),
        scores_(size_t{w.n_kv_heads} * w.n_tokens) {
    std::minstd_rand random(1);
    // The numbers lie between -2 and 2.
    for (HugeBuffer<uint16_t>* rows : {&keys_, &values_}) {
      for (size_t i = 0; i < RowsBytes() / sizeof(uint16_t); ++i) {
        const auto bits = static_cast<uint16_t>(random());
        rows->data()[i] = static_cast<uint16_t>((bits & 0x80ff) | 0x3f00);
      }
    }
    const size_t n_numbers = numbers_.size();
    for (size_t i = 0; i < n_numbers; ++i) {
      numbers_.data()[i] = static_cast<float>(random() % 1024) / 1024.0f;
    }
    view_.n_kv_heads = w.n_kv_heads;
    view_.k = Rows(keys_.data());
    view_.v = Rows(values_.data());
    queries_ = Numbers(w.n_tokens, w.head_dim);
    mean_ = Numbers(1, w.head_dim);
    covariance_ = Numbers(w.head_dim, w.head_dim);
    centers_ = Numbers(3, w.head_dim / 2);
    of_tokens_ = Numbers(w.n_tokens, 1);
    inputs_.queries = &queries_;
    inputs_.scores = inputs_.attention_sums = inputs_.token_weights =
        &of_tokens_;
    inputs_.query_mean = inputs_.key_filter = &mean_;
    inputs_.query_covariance = &covariance_;
    inputs_.query_centers = &centers_;
  }

  kvevict_layer_geometry Geometry() const {
    kvevict_layer_geometry layer = KVEVICT_LAYER_GEOMETRY_INIT;
    layer.n_q_heads = w_.n_q_heads;
    layer.n_kv_heads = w_.n_kv_heads;
    layer.k_head_dim = layer.v_head_dim = w_.head_dim;
    layer.k_dtype = layer.v_dtype = KVEVICT_DTYPE_BF16;
    return layer;
  }

  kvevict_score_job Job() {
    kvevict_score_job job = KVEVICT_SCORE_JOB_INIT;
    job.n_tokens = w_.n_tokens;
    job.view = &view_;
    job.inputs = &inputs_;
    job.scores = scores_.data();
    job.scores_len = scores_.size();
    return job;
  }

  // The bytes of a policy's inputs that are as long as the cache. keydiff reads
  // keys twice, since their mean comes before the comparison.
  double BytesRead(std::string_view name, const kvevict_policy* policy) const {
    const double of_tokens = 4.0 * w_.n_tokens;
    double bytes = 0;
    for (kvevict_input rows : {KVEVICT_INPUT_KEYS, KVEVICT_INPUT_VALUES}) {
      if (Needs(policy, rows)) bytes += static_cast<double>(RowsBytes());
    }
    if (name == "keydiff") bytes *= 2;
    // Sums are given, so that nothing stands in for them.
    if (name == "h2o") bytes += of_tokens * w_.n_q_heads;
    if (Needs(policy, KVEVICT_INPUT_SCORES)) bytes += of_tokens * w_.n_kv_heads;
    return bytes;
  }

 private:
  size_t RowsBytes() const {
    return size_t{w_.n_tokens} * w_.n_kv_heads * w_.head_dim * sizeof(uint16_t);
  }
  kvevict_plane Rows(const uint16_t* data) const {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = reinterpret_cast<uintptr_t>(data);
    plane.dtype = KVEVICT_DTYPE_BF16;
    plane.head_dim = w_.head_dim;
    plane.head_stride_bytes = int64_t{w_.head_dim} * sizeof(uint16_t);
    plane.token_stride_bytes = w_.n_kv_heads * plane.head_stride_bytes;
    return plane;
  }
  kvevict_plane Numbers(uint32_t n_rows, uint32_t n) const {
    kvevict_plane plane = KVEVICT_PLANE_INIT;
    plane.data = reinterpret_cast<uintptr_t>(numbers_.data());
    plane.dtype = KVEVICT_DTYPE_F32;
    plane.head_dim = n;
    plane.token_stride_bytes = int64_t{n} * sizeof(float);
    plane.head_stride_bytes = plane.token_stride_bytes * n_rows;
    return plane;
  }

  const Workload w_;
  HugeBuffer<uint16_t> keys_, values_;
  HugeBuffer<float> numbers_, scores_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  kvevict_plane queries_, mean_, covariance_, centers_, of_tokens_;
  kvevict_signal_inputs inputs_ = KVEVICT_SIGNAL_INPUTS_INIT;
};

// Keys are read at the speed of memory if nothing else is read, and no query head
// has products of its own.
std::optional<Goal> GoalOf(const Session& session,
                           const kvevict_policy* policy) {
  bool keys_alone = Needs(policy, KVEVICT_INPUT_KEYS);
  for (kvevict_input input :
       {KVEVICT_INPUT_VALUES, KVEVICT_INPUT_QUERIES, KVEVICT_INPUT_QUERY_MEAN,
        KVEVICT_INPUT_QUERY_CENTERS}) {
    keys_alone = keys_alone && !Needs(policy, input);
  }
  if (session.smoke || !keys_alone) return std::nullopt;
  return Goal{0.5, 0.7};
}

void BenchPolicy(Session& session, const Workload& w, const char* policy_name,
                 std::optional<Layer>& made_layer) {
  const std::string name =
      fmt::format("signal {} bf16 {}", policy_name, w.name);
  if (!session.wants(name)) return;
  session.announce(name);
  if (!made_layer) made_layer.emplace(w);
  Layer& layer = *made_layer;
  const PolicyHandle owner =
      CreatePolicy(fmt::format("{}:budget={}", policy_name, w.budget));
  const kvevict_policy* policy = owner.get();
  NarrowWindow(owner.get(), w.window);
  const ContextHandle context = CreateContext(session.simd.name);
  const kvevict_layer_geometry of_layer = layer.Geometry();
  kvevict_geometry geometry = KVEVICT_GEOMETRY_INIT;
  geometry.n_layers = 1;
  geometry.max_tokens = w.n_tokens;
  geometry.layers = &of_layer;
  geometry.layers_len = 1;
  const std::vector<float> inv_freq(w.head_dim / 2, 0.01f);
  geometry.rope_inv_freq = inv_freq.data();
  geometry.rope_inv_freq_len = inv_freq.size();
  kvevict_plan* made = nullptr;
  Check(kvevict_plan_create(context.get(), &geometry, policy, nullptr, &made));
  const PlanHandle plan(made);
  kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
  Check(kvevict_plan_workspace(plan.get(), KVEVICT_OPERATION_SCORE, 0, &size));
  HugeBuffer<uint8_t> workspace(std::max<size_t>(size.best_bytes, 64));
  const kvevict_score_job job = layer.Job();

  Row& row = session.report.AddRow(name, 1, "token/s");
  const double n_bytes = layer.BytesRead(policy_name, policy);
  Comparison* const read = n_bytes == 0 ? nullptr
                                        : &row.Against("reading what it reads",
                                                       GoalOf(session, policy));
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.ReadBytes(1);
    session.limits.EvictCaches();
    const Timing timing = TimeCalls([&] {
      Check(kvevict_score(plan.get(), &job, 1, workspace.data(),
                          size.best_bytes, nullptr));
    });
    if (!measured) return;
    row.Add(timing, w.n_tokens);
    if (read != nullptr) read->ratio.Add(n_bytes / timing.cpu / limit);
  });
}

}  // namespace

void BenchSignals(Session& session) {
  const Workload& w = session.smoke ? kSmoke : kA;
  std::optional<Layer> layer;  // made when it is needed
  kvevict_policy_info info = {};
  info.struct_size = sizeof(info);
  for (uint32_t i = 0; kvevict_policy_at(i, &info) == KVEVICT_OK; ++i) {
    const std::string_view policy = info.name;
    const bool ranks = policy != "none" && policy != "streaming-llm";
    if (ranks) BenchPolicy(session, w, info.name, layer);
  }
}

}  // namespace kvevict::bench
