// The cost of ranking a layer's tokens by kvevict_score(): by each policy, against reading
// the same part of the cache, and from quantized keys, against the same keys in f32.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kvevict/experimental.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

bool Needs(const kvevict_policy* policy, kvevict_input input) {
  kvevict_need need = KVEVICT_NEED_NONE;
  Check(kvevict_policy_need(policy, input, &need));
  return need == KVEVICT_NEED_REQUIRED;
}

// Keys and values of one dtype, [S, H, D], with scales of keys that need them, and all
// other inputs of signals.
class Layer {
 public:
  Layer(const Workload& w, DType dtype)
      : w_(w),
        dtype_(dtype),
        keys_(RowsBytes()),
        values_(RowsBytes()),
        scales_(size_t{w.n_tokens} * w.n_kv_heads),
        numbers_(size_t{w.n_q_heads} *
                 std::max({w.head_dim * w.head_dim, w.n_tokens,
                           w.head_dim * w.n_tokens})),
        scores_(size_t{w.n_kv_heads} * w.n_tokens) {
    FillWithCodes(keys_, 0x3C);
    FillWithCodes(values_, 0x3C);
    std::fill_n(scales_.data(), scales_.size(), uint16_t{0x1C00});
    std::minstd_rand random(1);
    for (size_t i = 0; i < numbers_.size(); ++i) {
      numbers_[i] = static_cast<float>(random() % 1024) / 1024.0f;
    }
    view_.n_kv_heads = w.n_kv_heads;
    view_.k = PlaneOf(keys_.data(), dtype_of_c(), w.n_kv_heads, w.head_dim,
                      RowBytes());
    view_.v = view_.k;
    view_.v.data = reinterpret_cast<uintptr_t>(values_.data());
    if (InfoOf(dtype).scale == Scale::kNeeded) {
      scale_ = RowsOf(scales_.data(), KVEVICT_DTYPE_F16, w.n_kv_heads, 1);
      scale_.role = KVEVICT_ROLE_KEY_SCALE;
      view_.v = KVEVICT_PLANE_INIT;  // keys alone are scored
      view_.companions = &scale_;
      view_.n_companions = 1;
    }
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
  Layer(const Layer&) = delete;

  kvevict_dtype dtype_of_c() const {
    return static_cast<kvevict_dtype>(dtype_);
  }
  const Workload& workload() const { return w_; }

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
  size_t RowBytes() const { return PackedBytes(dtype_, w_.head_dim); }
  size_t RowsBytes() const {
    return size_t{w_.n_tokens} * w_.n_kv_heads * RowBytes();
  }
  // [heads, n_rows, n] of numbers.
  kvevict_plane Numbers(uint32_t n_rows, uint32_t n) const {
    kvevict_plane plane = RowsOf(numbers_.data(), 1, n);
    plane.head_stride_bytes = plane.token_stride_bytes * n_rows;
    return plane;
  }

  const Workload w_;
  const DType dtype_;
  HugeBuffer<uint8_t> keys_, values_;
  HugeBuffer<uint16_t> scales_;
  HugeBuffer<float> numbers_, scores_;
  kvevict_view view_ = KVEVICT_VIEW_INIT;
  kvevict_plane scale_, queries_, mean_, covariance_, centers_, of_tokens_;
  kvevict_signal_inputs inputs_ = KVEVICT_SIGNAL_INPUTS_INIT;
};

// A plan for a layer and policy, and what a call needs.
class Scorer {
 public:
  Scorer(const Session& session, Layer& layer, const char* policy)
      : context_(CreateContext(session.simd.name)),
        policy_(CreatePolicy(
            fmt::format("{}:budget={}", policy, layer.workload().budget))),
        job_(layer.Job()) {
    const Workload& w = layer.workload();
    NarrowWindow(policy_.get(), w.window);
    const std::vector<float> inv_freq(w.head_dim / 2, 0.01f);
    plan_ = CreatePlan(
        context_.get(), 1,
        LayerOf(w.n_q_heads, w.n_kv_heads, w.head_dim, layer.dtype_of_c()),
        w.n_tokens, policy_.get(), inv_freq);
    workspace_.emplace(plan_.get(), KVEVICT_OPERATION_SCORE);
  }

  const kvevict_policy* policy() const { return policy_.get(); }
  Timing Score() const {
    return TimeCalls([&] {
      Check(kvevict_score(plan_.get(), &job_, 1, workspace_->data(),
                          workspace_->bytes, nullptr));
    });
  }

 private:
  const ContextHandle context_;
  const PolicyHandle policy_;
  const kvevict_score_job job_;
  PlanHandle plan_;
  std::optional<Workspace> workspace_;
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
  return keys_alone ? session.Aim(Goal{0.5, 0.7}) : std::nullopt;
}

void BenchPolicy(Session& session, const Workload& w, const char* policy,
                 std::optional<Layer>& made_layer) {
  const std::string name = fmt::format("signal {} bf16 {}", policy, w.name);
  if (!session.Begins(name)) return;
  if (!made_layer) made_layer.emplace(w, DType::kBF16);
  const Scorer scorer(session, *made_layer, policy);
  Row& row = session.report.AddRow(name, 1, "token/s");
  const double n_bytes = made_layer->BytesRead(policy, scorer.policy());
  Comparison* const read = n_bytes == 0
                               ? nullptr
                               : &row.Against("reading what it reads",
                                              GoalOf(session, scorer.policy()));
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.ReadBytes(1);
    session.limits.EvictCaches();
    const Timing timing = scorer.Score();
    if (!measured) return;
    row.Add(timing, w.n_tokens);
    if (read != nullptr) read->ratio.Add(n_bytes / timing.cpu / limit);
  });
}

void BenchDType(Session& session, const Workload& w, const char* policy,
                DType dtype) {
  const std::string name =
      fmt::format("quantized {} {} {}", policy, InfoOf(dtype).name, w.name);
  if (!session.Begins(name)) return;
  Layer plain(w, DType::kF32), quantized(w, dtype);
  const Scorer of_f32(session, plain, policy),
      of_codes(session, quantized, policy);
  const auto score = [&](const Scorer& scorer) {
    session.limits.EvictCaches();
    return scorer.Score();
  };
  MeasureBeside(session, name, "token/s", w.n_tokens,
                {"f32 keys", std::nullopt, [&] { return score(of_f32); }},
                [&] { return score(of_codes); });
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

void BenchQuantized(Session& session) {
  const Workload& w = session.smoke ? kC : kA;
  for (const char* policy : {"knorm", "snapkv"}) {
    for (DType dtype :
         {DType::kU8, DType::kU4, DType::kQ8_0, DType::kQ4_0, DType::kE4M3}) {
      BenchDType(session, w, policy, dtype);
    }
  }
}

}  // namespace kvevict::bench
