// A decoding step in an engine: observing, appending and evicting in all layers
// beside that step's kvevict_attend() over the same caches. As in an engine, the
// layers do not fit the processor's caches.
#include <fmt/format.h>

#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvevict/attention.h"
#include "tests/bench/clocks.h"
#include "tests/bench/handles.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"

namespace kvevict::bench {
namespace {

struct Shape {
  uint32_t n_layers;
  uint32_t n_q_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t budget;
};
constexpr Shape kModel = {8, 32, 8, 128, 2048};
constexpr Shape kSmall = {2, 8, 2, 32, 64};

struct Case {
  const char* name;
  const char* policy;
  uint32_t margin;
  float mean = 0.0f;  // of the keys' elements, whose deviation is 1
  std::optional<Goal> goal = std::nullopt;
};
constexpr Goal kGoal = {0.1, 0.05, true};
constexpr Goal kEveryPairCompared = {0.25, 0.125, true};
constexpr Case kCases[] = {
    {"streaming-llm, margin 127", "streaming-llm:sink=4", 127, 0.0f, kGoal},
    {"tova, margin 127", "tova:keep_window=no", 127, 0.0f, kGoal},
    {"tova, margin 31", "tova:keep_window=no", 31, 0.0f, kGoal},
    {"tova, margin 0", "tova:keep_window=no", 0},
    {"h2o by sums, margin 127", "h2o", 127, 0.0f, kGoal},
    {"h2o by sums, margin 0", "h2o", 0},
    {"r-kv around a mean, margin 127", "r-kv:redundancy=0.93", 127, 2.0f,
     kGoal},
    {"r-kv, no two keys similar, margin 127", "r-kv:redundancy=0.93", 127, 0.0f,
     kEveryPairCompared},
};

// A sequence in the middle of decoding, whose layers are filled up to the budget.
class Decoder {
 public:
  Decoder(Session& session, const Shape& shape, const Case& c)
      : s_(shape),
        margin_(session.smoke ? c.margin % 16 : c.margin),
        n_slots_(shape.budget + margin_ + 1),
        context_(CreateContext(session.simd.name)),
        queries_(size_t{s_.n_q_heads} * s_.head_dim),
        sums_(size_t{s_.n_kv_heads} * n_slots_),
        out_(size_t{s_.n_q_heads} * s_.head_dim) {
    MakePlan(c);
    FillRows(c.mean);
    MakeAttention();
    sequence_ = CreateSequence(plan_.get());
    Check(kvevict_sequence_begin_observing(sequence_.get(), nullptr, 0));
    sum_rows_ = RowsOf(sums_.data(), s_.n_kv_heads, 1);
    sum_rows_.token_stride_bytes = sizeof(float);
    sum_rows_.head_stride_bytes = int64_t{n_slots_} * sizeof(float);
    shown_.queries = &query_rows_;
    kvevict_signal_inputs told = KVEVICT_SIGNAL_INPUTS_INIT;
    if (std::string(c.policy).starts_with("h2o")) {
      told.attention_sums = &sum_rows_;
      told.n_sum_heads = s_.n_kv_heads;
    }
    for (uint32_t l = 0; l < s_.n_layers; ++l) {
      observations_.push_back({sizeof(kvevict_observation), l, &shown_});
      told_.push_back(told);
    }
    while (Stored() < s_.budget) Step();
  }

  uint32_t n_steps() const { return margin_ + 1; }

  // One round goes from budget to budget. The engine's own rows are there already.
  void Round() {
    for (uint32_t i = 0; i < n_steps(); ++i) Step();
    if (Stored() != s_.budget) {
      throw std::runtime_error(fmt::format(
          "decode: {} slots after a round, not {}", Stored(), s_.budget));
    }
  }

  // Attends in all layers to the least number of tokens that a cache holds.
  void Attention() {
    for (const kvevict_attention_job& layer : attention_) {
      Check(kvevict_attend(context_.get(), &layer, 1, attention_memory_->data(),
                           attention_memory_->bytes, nullptr));
    }
  }
  double attention_bytes() const {
    return 2.0 * s_.n_layers * s_.budget * s_.n_kv_heads * s_.head_dim *
           sizeof(float);
  }

 private:
  void MakePlan(const Case& c) {
    const std::string text = fmt::format(
        "{}{}budget={},margin={}", c.policy,
        std::string(c.policy).find(':') == std::string::npos ? ':' : ',',
        s_.budget, margin_);
    plan_ = CreatePlan(context_.get(), s_.n_layers,
                       LayerOf(s_.n_q_heads, s_.n_kv_heads, s_.head_dim),
                       n_slots_, text);
    workspace_.emplace(plan_.get(), KVEVICT_OPERATION_EVICT);
  }

  void FillRows(float mean) {
    FillGaussian(queries_);
    FillGaussian(sums_);
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] = std::abs(sums_[i]);
    const size_t n = size_t{n_slots_} * s_.n_kv_heads * s_.head_dim;
    for (uint32_t l = 0; l < s_.n_layers; ++l) {
      kvevict_view view = KVEVICT_VIEW_INIT;
      view.n_kv_heads = s_.n_kv_heads;
      for (kvevict_plane* plane : {&view.k, &view.v}) {
        HugeBuffer<float>& rows = planes_.emplace_back(n);
        FillGaussian(rows, mean, planes_.size());
        *plane = RowsOf(rows.data(), s_.n_kv_heads, s_.head_dim);
      }
      views_.push_back(view);
    }
  }

  void MakeAttention() {
    query_rows_ = RowsOf(queries_.data(), s_.n_q_heads, s_.head_dim);
    out_rows_ = RowsOf(out_.data(), s_.n_q_heads, s_.head_dim);
    for (const kvevict_view& view : views_) {
      kvevict_attention_job job = KVEVICT_ATTENTION_JOB_INIT;
      job.n_tokens = s_.budget;
      job.view = &view;
      job.queries = &query_rows_;
      job.out = &out_rows_;
      job.n_q_heads = s_.n_q_heads;
      job.n_queries = 1;
      attention_.push_back(job);
    }
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(
        kvevict_attend_workspace(context_.get(), attention_.data(), 1, &size));
    attention_memory_.emplace(size.best_bytes);
  }

  uint32_t Stored() const {
    uint32_t stored = 0;
    Check(kvevict_sequence_stored_length(sequence_.get(), 0, 0, &stored));
    return stored;
  }

  void Step() {
    Check(kvevict_sequence_observe(sequence_.get(), observations_.data(),
                                   observations_.size(), 1,
                                   KVEVICT_POSITION_NEXT, nullptr));
    Check(kvevict_sequence_append(sequence_.get(), 1, nullptr));
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = told_.data();
    options.inputs_len = told_.size();
    Check(kvevict_sequence_evict(sequence_.get(), views_.data(), views_.size(),
                                 &options, workspace_->data(),
                                 workspace_->bytes, nullptr));
  }

  const Shape s_;
  const uint32_t margin_;
  const uint32_t n_slots_;
  const ContextHandle context_;
  PlanHandle plan_;
  SequenceHandle sequence_;
  HugeBuffer<float> queries_;
  HugeBuffer<float> sums_;
  HugeBuffer<float> out_;
  std::deque<HugeBuffer<float>> planes_;  // K and V of each layer
  std::vector<kvevict_view> views_;
  std::vector<kvevict_attention_job> attention_;
  kvevict_plane query_rows_;
  kvevict_plane out_rows_;
  kvevict_plane sum_rows_;
  kvevict_signal_inputs shown_ = KVEVICT_SIGNAL_INPUTS_INIT;
  std::vector<kvevict_signal_inputs> told_;
  std::vector<kvevict_observation> observations_;
  std::optional<Workspace> workspace_;
  std::optional<Workspace> attention_memory_;
};

void BenchCase(Session& session, const Shape& shape, const Case& c) {
  const std::string name = fmt::format("decode step {}", c.name);
  if (!session.Begins(name)) return;
  Decoder decoder(session, shape, c);
  Row& row = session.report.AddRow(name, 1, "step/s");
  Comparison& share = row.Against("the step's attention", session.Aim(c.goal));
  Comparison& read = row.Against("attention: its reads of memory at the limit");
  Repeat(session, [&](bool measured) {
    const double bytes = session.limits.ReadBytes(1);
    const Timing attention = TimeCalls([&] { decoder.Attention(); }, 0.05);
    Timing step = TimeCalls([&] { decoder.Round(); }, 0.05);
    step.wall /= decoder.n_steps();
    step.cpu /= decoder.n_steps();
    if (!measured) return;
    row.Add(step, 1);
    share.ratio.Add(step.cpu / attention.cpu);
    read.ratio.Add(decoder.attention_bytes() / bytes / attention.cpu);
  });
}

}  // namespace

void BenchDecode(Session& session) {
  for (const Case& c : kCases) {
    BenchCase(session, session.smoke ? kSmall : kModel, c);
  }
}

}  // namespace kvevict::bench
