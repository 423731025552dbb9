// Evictions that fit values, and biases before them, of random layers against double
// precision.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "tests/gpu/checks.h"
#include "tests/gpu/numbers.h"
#include "tests/oracle/fit.h"

namespace kvevict::gpu {
namespace {

struct FitCase {
  kvevict_layer_geometry geometry = KVEVICT_LAYER_GEOMETRY_INIT;
  std::string policy;
  uint32_t n_tokens = 0;
  uint32_t n_rows = 0;  // of queries
  bool by_window = false;
  bool has_biases = false;
  bool fits_biases = false;
  bool has_sinks = false;
  bool has_nan = false;  // among the keys, so that nothing is fitted
};

// Long ones have more slots, or queries, than are added up at a time.
FitCase DrawFit(Random* random, uint32_t i) {
  FitCase c;
  const bool is_long = i % 8 == 7;
  kvevict_layer_geometry& g = c.geometry;
  g.n_kv_heads = random->In(1, 2);
  g.n_q_heads = g.n_kv_heads * random->In(1, 3);
  g.k_head_dim = random->Pick({1u, 3u, 8u, 16u, 20u, 33u, 40u});
  g.v_head_dim = random->In(1, is_long ? 4 : 50);
  g.q_dtype = RandomDType(random);
  g.k_dtype = RandomDType(random);
  g.v_dtype = RandomDType(random);
  if (random->OneOf(3)) g.softmax_scale = 2.0f;
  if (random->OneOf(3)) g.logit_softcap = 6.0f;
  c.has_sinks = random->OneOf(2);
  const bool keeps_few = i % 8 == 1;
  c.fits_biases = keeps_few || (!is_long && random->OneOf(2));
  c.has_biases = c.fits_biases || random->OneOf(3);
  c.n_tokens = is_long ? 300 : keeps_few ? 120 : random->In(30, 120);
  c.n_rows = is_long ? random->Pick({9u, 150u}) : random->In(4, 40);
  // What few slots keep has to count many times.
  const uint32_t budget = is_long     ? random->Pick({20u, 270u})
                          : keeps_few ? 3
                                      : random->In(12, c.n_tokens - 1);
  const char* const fit = c.fits_biases ? "bias-values" : "values";
  const char* const ridge =
      !keeps_few && random->OneOf(3) ? ",fit_ridge=0.1" : "";
  c.by_window = !is_long && !keeps_few && i % 3 == 0;
  if (c.by_window) {
    c.n_rows = std::min(c.n_rows, budget - 1);
    c.policy =
        fmt::format("snapkv:sink=0,recent=0,budget={},window={},fit={}{}",
                    budget, c.n_rows, fit, ridge);
    return c;
  }
  c.has_nan = random->OneOf(6) && g.k_dtype != KVEVICT_DTYPE_F16;
  const char* const chosen =
      random->Pick({"streaming-llm:sink=1,", "random:sink=0,scope=layer,",
                    "random:sink=0,scope=head,heads=adaptive,"});
  c.policy = fmt::format("{}budget={},reference={},fit={}{}", chosen, budget,
                         c.n_rows, fit, ridge);
  return c;
}

// What all cases had.
struct Fitted {
  uint32_t n_free = 0;  // biases between their limits
  uint32_t n_least = 0;
  uint32_t n_most = 0;
  double most = 0.0;  // the largest change of a value, in bounds
};

// Fails unless biases are at the minimum within their limits, where every slope is 0
// or points beyond the limit that the bias is at.
void CheckBiasesOf(const oracle_fit& in, bool are_fitted, Fitted* all,
                   Report* report) {
  std::vector<double> pulls(in.n_keep), bounds(in.n_keep);
  if (are_fitted) oracle_fit_bias_pulls(&in, pulls.data(), bounds.data());
  for (uint32_t i = 0; i < in.n_keep; ++i) {
    const float now = in.fitted_biases[i];
    const double change = double{now} - in.biases[in.keep[i]];
    const double rounding = 0x1p-23 * std::abs(now);
    const bool is_least = change <= rounding - 3.0;
    const bool is_most = change >= 3.0 - rounding;
    report->FailIf(
        are_fitted ? !(std::abs(change) <= 3.0 + rounding) ||
                         !(is_least || pulls[i] <= bounds[i]) ||
                         !(is_most || pulls[i] >= -bounds[i])
                   : change != 0.0,
        fmt::format("bias {} changes by {}, and is pulled by {}, bound {}", i,
                    change, pulls[i], bounds[i]));
    if (are_fitted) {
      ++(is_least ? all->n_least : is_most ? all->n_most : all->n_free);
    }
  }
}

// One evicted sequence of one layer.
class FitCheck {
 public:
  FitCheck(const Gpu& gpu, const FitCase& c, Random* random, Fitted* all,
           Report* report)
      : gpu_(gpu),
        c_(c),
        g_(c.geometry),
        policy_(ParsePolicy(c.policy)),
        host_(CreateContext(KVEVICT_CONTEXT_OPTIONS_INIT)),
        queries_(gpu, DrawPlane(random, g_.q_dtype, g_.k_head_dim, g_.n_q_heads,
                                c.n_rows, 1)),
        all_(all),
        report_(report) {
    do {
      layer_ = std::make_unique<RandomLayer>(gpu, random, g_, c.n_tokens);
    } while ((layer_->BiasAt(0, 0) != nullptr) != c.has_biases);
    for (uint32_t h = 0; h < g_.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < c.n_tokens; ++t) {
        layer_->WriteRows(random, h, t, /*special=*/false);
      }
    }
    if (c.has_nan) {
      StoreValue(g_.k_dtype, NAN,
                 layer_->ElementAt(false, 0, c.n_tokens / 2, 0));
    }
    layer_->Upload();
    keys_ = Decode(host_.get(), *layer_, false, c.n_tokens);
    values_ = Decode(host_.get(), *layer_, true, c.n_tokens);
    for (size_t i = 0; i < size_t{g_.n_kv_heads} * c.n_tokens && c.has_biases;
         ++i) {
      biases_.push_back(*layer_->BiasAt(static_cast<uint32_t>(i / c.n_tokens),
                                        static_cast<uint32_t>(i % c.n_tokens)));
    }
    rows_ =
        FillQueries(random, &queries_, g_.n_q_heads, c.n_rows, g_.k_head_dim);
    for (uint32_t h = 0; h < g_.n_q_heads && c.has_sinks; ++h) {
      sinks_.push_back(static_cast<float>(random->In(0, 40)) / 8.0f - 3.0f);
    }
  }

  void Run() {
    const ContextHandle context = CreateContext(gpu_.ContextOptions());
    const Geometry one = {1, c_.n_tokens, {g_}};
    kvevict_geometry geometry = one.Borrowed();
    geometry.sink_logits = sinks_.empty() ? nullptr : sinks_.data();
    geometry.sink_logits_len = sinks_.size();
    kvevict_plan* made = nullptr;
    Check(kvevict_plan_create(context.get(), &geometry, HandleOf(policy_).get(),
                              nullptr, &made));
    const PlanHandle plan(made);
    const SequenceHandle sequence = CreateSequence(plan.get());
    Check(kvevict_sequence_append(sequence.get(), c_.n_tokens, gpu_.stream()));
    kvevict_signal_inputs inputs = KVEVICT_SIGNAL_INPUTS_INIT;
    if (c_.by_window) {
      inputs.queries = queries_.OnDevice();
    } else {
      inputs.n_reference_rows = c_.n_rows;
      inputs.reference_queries = queries_.OnDevice();
    }
    kvevict_evict_options options = KVEVICT_EVICT_OPTIONS_INIT;
    options.inputs = &inputs;
    options.inputs_len = 1;
    const Buffer workspace(gpu_,
                           WorkspaceBytes(plan.get(), KVEVICT_OPERATION_EVICT));
    Check(kvevict_sequence_evict(sequence.get(), &layer_->device_view(), 1,
                                 &options, workspace.pointer<void>(),
                                 workspace.n_bytes(), gpu_.stream()));
    gpu_.Synchronize();
    layer_->Fetch();
    uint32_t n_weak = 0;
    for (uint32_t h = 0; h < g_.n_kv_heads; ++h) {
      n_weak += CheckHead(sequence.get(), h);
    }
    const uint32_t n_said = ReportOf(sequence.get()).n_weak_fits;
    report_->FailIf(!c_.has_nan && n_said != n_weak,
                    fmt::format("{} weak fits, not {}", n_said, n_weak));
  }

 private:
  // Returns whether fewer than two queries for each slot were fitted to.
  bool CheckHead(const kvevict_sequence* sequence, uint32_t head) {
    uint32_t n_keep = 0;
    Check(kvevict_sequence_stored_length(sequence, 0, head, &n_keep));
    std::vector<int32_t> kept(n_keep);
    size_t count = 0;
    Check(kvevict_sequence_keep_positions(sequence, 0, head, kept.data(),
                                          n_keep, &count));
    const uint32_t group = g_.n_q_heads / g_.n_kv_heads;
    const uint32_t n_queries = group * c_.n_rows;
    const size_t first = size_t{head} * c_.n_tokens;
    std::vector<float> sinks, biases;
    for (uint32_t i = 0; i < n_queries && c_.has_sinks; ++i) {
      sinks.push_back(sinks_[head * group + i / c_.n_rows]);
    }
    for (uint32_t i = 0; i < n_keep && c_.has_biases; ++i) {
      biases.push_back(*layer_->BiasAt(head, i));
    }
    const oracle_fit in = {&rows_[size_t{head} * n_queries * g_.k_head_dim],
                           sinks.empty() ? nullptr : sinks.data(),
                           &keys_[first * g_.k_head_dim],
                           &values_[first * g_.v_head_dim],
                           n_queries,
                           c_.n_tokens,
                           g_.k_head_dim,
                           g_.v_head_dim,
                           g_.softmax_scale != 0.0f
                               ? double{g_.softmax_scale}
                               : 1.0 / std::sqrt(double{1} * g_.k_head_dim),
                           double{g_.logit_softcap},
                           kept.data(),
                           n_keep,
                           policy_.fit_ridge,
                           c_.has_biases ? &biases_[first] : nullptr,
                           c_.has_biases ? biases.data() : nullptr};
    // NaN in a key changes nothing in its head.
    const bool is_idle = n_keep == c_.n_tokens || (c_.has_nan && head == 0);
    if (c_.has_biases) {
      CheckBiasesOf(in, c_.fits_biases && !is_idle, all_, report_);
    }
    std::vector<double> want(size_t{n_keep} * g_.v_head_dim),
        bounds(want.size());
    if (!is_idle) (void)oracle_fit_values(&in, want.data(), bounds.data());
    for (size_t i = 0; i < want.size(); ++i) {
      const auto slot = static_cast<uint32_t>(i / g_.v_head_dim);
      const auto e = static_cast<uint32_t>(i % g_.v_head_dim);
      const double got =
          ValueAt(g_.v_dtype, layer_->ElementAt(true, head, slot, e), 0);
      const double old =
          in.values[static_cast<size_t>(kept[slot]) * g_.v_head_dim + e];
      if (is_idle) {
        report_->FailIf(got != old, fmt::format("slot {} changed", slot));
        continue;
      }
      const double bound = bounds[i] + StoredError(g_.v_dtype, want[i]);
      report_->FailIf(
          !(std::abs(got - want[i]) <= bound),
          fmt::format("head {}, slot {}, element {} is {}, not {} to {}", head,
                      slot, e, got, want[i], bound));
      all_->most = std::max(all_->most, std::abs(want[i] - old) / bound);
    }
    return n_queries < 2 * n_keep;
  }

  const Gpu& gpu_;
  const FitCase& c_;
  const kvevict_layer_geometry& g_;
  const oracle_policy policy_;
  const ContextHandle host_;
  std::unique_ptr<RandomLayer> layer_;
  StridedRows queries_;
  std::vector<float> keys_, values_, biases_, rows_, sinks_;
  Fitted* const all_;
  Report* const report_;
};

}  // namespace

void CheckFits(const Gpu& gpu, const Effort& effort, Report* report) {
  Fitted all;
  for (uint32_t i = 0; i < 8 * effort.times; ++i) {
    Random random(1000 * effort.seed + i);
    const FitCase c = DrawFit(&random, i);
    report->Check(fmt::format("fit {}: {}, {} tokens", i, c.policy, c.n_tokens),
                  [&] { FitCheck(gpu, c, &random, &all, report).Run(); });
  }
  report->Check("fits changed values and biases", [&] {
    report->FailIf(all.most < 100.0,
                   fmt::format("changes are at most {} bounds", all.most));
    report->FailIf(
        all.n_free == 0 || all.n_least + all.n_most == 0,
        fmt::format("{} biases are free, {} at the least, {} at the most",
                    all.n_free, all.n_least, all.n_most));
  });
}

}  // namespace kvevict::gpu
