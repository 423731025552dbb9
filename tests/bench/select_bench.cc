// Pooling and selection beside scoring; selection beside other ways to select.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/kernels/pool1d.h"
#include "kvevict/experimental.h"
#include "tests/bench/plans.h"
#include "tests/bench/reference.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

// kvevict_select() of one layer under a policy.
class Selector {
 public:
  Selector(SimdTarget simd, const std::string& policy_text, uint32_t n_kv_heads,
           uint32_t n_tokens, uint32_t budget)
      : context_(CreateContext(simd.name)), keep_(size_t{n_kv_heads} * budget) {
    kvevict_layer_geometry layer = LayerOf(n_kv_heads, n_kv_heads, 1);
    layer.v_head_dim = 0;
    plan_ = CreatePlan(context_.get(), 1, layer, n_tokens, policy_text);
    Check(kvevict_plan_selection(plan_.get(), 0, n_tokens, 0, &options_,
                                 &lists_));
    lists_.slots = keep_.data();
    lists_.slots_len = keep_.size();
    kvevict_workspace size = KVEVICT_WORKSPACE_INIT;
    Check(
        kvevict_select_workspace(context_.get(), n_tokens, n_kv_heads, &size));
    workspace_.emplace(size.best_bytes);
  }

  const std::vector<int32_t>& Select(const float* scores, size_t scores_len) {
    options_.scores = scores;
    options_.scores_len = scores_len;
    Check(kvevict_select(context_.get(), &options_, &lists_, workspace_->data(),
                         workspace_->size(), nullptr));
    return keep_;
  }

 private:
  ContextHandle context_;
  PlanHandle plan_;
  kvevict_select_options options_ = KVEVICT_SELECT_OPTIONS_INIT;
  kvevict_keep_lists lists_ = KVEVICT_KEEP_LISTS_INIT;
  std::optional<HugeBuffer<uint8_t>> workspace_;
  std::vector<int32_t> keep_;
};

constexpr double kMinSeconds = 3e-3;

// Pools and selects from the weights of the query heads, for all KV heads of a layer.
void BenchPoolAndSelect(Session& session, const Workload& w,
                        std::optional<Goal> goal) {
  const std::string name = fmt::format("pool + select {}", w.name);
  if (!session.Begins(name)) return;
  AttentionData data(w, DType::kF32);
  Selector selector(session.simd,
                    fmt::format("snapkv:budget={},sink=4,window={},pool=avg7",
                                w.budget, w.window),
                    w.n_kv_heads, w.n_tokens, w.budget);
  HugeBuffer<float> mean(w.n_tokens);
  HugeBuffer<float> scores(size_t{w.n_kv_heads} * w.n_tokens);
  const uint32_t n_pooled = w.n_tokens - w.window;
  const auto pool_and_select = [&] {
    for (uint32_t head = 0; head < w.n_kv_heads; ++head) {
      float* head_scores = scores.data() + size_t{head} * w.n_tokens;
      ReduceRows(session.simd,
                 data.weights() + size_t{head} * w.group() * w.n_tokens,
                 w.group(), w.n_tokens, n_pooled, Reduce::kMean, mean.data());
      Pool1d(session.simd, mean.data(), n_pooled, 7, PoolKind::kAvg,
             PoolEdge::kPad, head_scores);
      std::fill(head_scores + n_pooled, head_scores + w.n_tokens,
                std::numeric_limits<float>::infinity());
    }
    selector.Select(scores.data(), scores.size());
  };

  const auto score = [&] {
    return data.Score(session.simd, KeyLayout::kTokenMajor, 1);
  };
  MeasureBeside(session, name, "score/s", static_cast<double>(scores.size()),
                {"time of scoring f32, 1 thread", goal, score, true},
                [&] { return TimeCalls(pool_and_select, kMinSeconds); });
}

// Sets of scores take turns: branch predictors learn a single one by heart, which
// makes nth_element three times as fast as in an engine.
class ScoreSets {
 public:
  ScoreSets(uint32_t n_tokens, uint32_t n_sets) : n_tokens_(n_tokens) {
    std::mt19937_64 engine(2);
    scores_.resize(size_t{n_sets} * n_tokens);
    for (float& score : scores_) score = static_cast<float>(engine() >> 40);
  }

  const float* Next() {
    const float* scores = &scores_[next_];
    next_ = (next_ + n_tokens_) % scores_.size();
    return scores;
  }

 private:
  const uint32_t n_tokens_;
  std::vector<float> scores_;
  size_t next_ = 0;
};

void BenchSelectAlone(Session& session, uint32_t n_tokens, uint32_t budget,
                      std::optional<Goal> goal) {
  const std::string name =
      fmt::format("select {} of {}, random scores", budget, n_tokens);
  if (!session.Begins(name)) return;
  constexpr uint32_t kSets = 64;
  ScoreSets sets(n_tokens, kSets);
  Selector selector(session.simd,
                    fmt::format("custom:budget={},sink=0", budget), 1, n_tokens,
                    budget);
  std::vector<int32_t> places(budget);

  // Returns the seconds for one set.
  const auto time_sets = [&](const auto& select) {
    Timing timing = TimeCalls([&] {
      for (uint32_t i = 0; i < kSets; ++i) select(sets.Next());
    });
    timing.wall /= kSets;
    timing.cpu /= kSets;
    return timing;
  };
  const auto nth_element = [&](const float* scores) {
    NthElementSelect(scores, n_tokens, budget, places.data());
  };
  for (uint32_t i = 0; i < kSets; ++i) {
    const float* scores = sets.Next();
    nth_element(scores);
    if (selector.Select(scores, n_tokens) != places) {
      throw std::runtime_error(name + ": nth_element selects otherwise");
    }
  }

  const auto select = [&](const float* scores) {
    selector.Select(scores, n_tokens);
  };
  MeasureBeside(
      session, name, "score/s", n_tokens,
      {"nth_element select", goal, [&] { return time_sets(nth_element); }},
      [&] { return time_sets(select); });
}

}  // namespace

void BenchSelect(Session& session) {
  if (session.smoke) {
    BenchPoolAndSelect(session, kSmoke, std::nullopt);
    BenchSelectAlone(session, 500, 50, std::nullopt);
    return;
  }
  BenchPoolAndSelect(session, kA, Goal{0.01, 0.003, true});
  BenchPoolAndSelect(session, kC, Goal{0.03, 0.02, true});
  BenchPoolAndSelect(session, kOdd, std::nullopt);
  for (const Workload& w : {kA, kB}) {
    BenchSelectAlone(session, w.n_tokens, w.budget, Goal{8, 17});
  }
  BenchSelectAlone(session, kC.n_tokens, kC.budget, std::nullopt);
}

}  // namespace kvevict::bench
