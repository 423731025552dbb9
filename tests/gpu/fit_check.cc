// Evictions that fit values, against double precision.
#include <fmt/format.h>

#include <cmath>

#include "tests/gpu/checks.h"
#include "tests/gpu/model.h"
#include "tests/oracle/fit.h"

namespace kvevict::gpu {
namespace {

// Heads may have different numbers of them.
std::vector<int32_t> PositionsOf(const Side& side, uint32_t layer,
                                 uint32_t head) {
  uint32_t n = 0;
  Check(kvevict_sequence_stored_length(side.sequence(), layer, head, &n));
  std::vector<int32_t> positions(n);
  size_t count = 0;
  Check(kvevict_sequence_keep_positions(side.sequence(), layer, head,
                                        positions.data(), n, &count));
  return positions;
}

// Fails unless biases are at the minimum within their limits, where every slope is 0
// or points beyond the limit that the bias is at.
void CheckBiasesOf(const oracle_fit& in, bool are_fitted, Report* report) {
  std::vector<double> pulls(in.n_keep), bounds(in.n_keep);
  oracle_fit_bias_pulls(&in, pulls.data(), bounds.data());
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
  }
}

// One evicted sequence.
class FitCheck {
 public:
  // Slots have biases up to `most_bias` above and below 0; 0: none.
  FitCheck(const Gpu& gpu, const std::string& policy, Layout layout,
           float most_bias, uint64_t seed, Report* report)
      : gpu_(gpu),
        twin_(gpu,
              {"", 1, 4, 2, 32, 120, KVEVICT_DTYPE_F32, KVEVICT_DTYPE_F32,
               layout, most_bias},
              seed),
        device_(&gpu, &twin_, policy),
        fits_biases_(policy.find("bias-values") != std::string::npos),
        report_(report) {}

  void Run() {
    Check(kvevict_context_prepare(device_.context(), device_.plan()));
    device_.Prefill(0, shape().n_tokens, 64);
    Evict();
    const kvevict_evict_report done = ReportOf(device_.sequence());
    for (uint32_t l = 0; l < shape().n_layers; ++l) {
      twin_.Fetch(l);
      for (uint32_t h = 0; h < shape().n_kv_heads; ++h) CheckHead(l, h);
    }
    report_->FailIf(most_ < 10.0, fmt::format("changes are {} bounds", most_));
    report_->FailIf(
        done.n_weak_fits != n_weak_,
        fmt::format("{} weak fits, not {}", done.n_weak_fits, n_weak_));
  }

 private:
  const Shape& shape() const { return twin_.shape(); }
  uint32_t group() const { return shape().n_q_heads / shape().n_kv_heads; }
  bool refers() const { return device_.policy().reference > 0; }
  uint32_t n_rows() const {
    return refers() ? device_.policy().reference : device_.policy().window;
  }
  uint32_t first_query() const {
    return refers() ? 0 : shape().n_tokens - n_rows();
  }

  void Evict() {
    std::vector<kvevict_plane> planes;
    std::vector<kvevict_signal_inputs> inputs(shape().n_layers,
                                              KVEVICT_SIGNAL_INPUTS_INIT);
    kvevict_evict_options evict = KVEVICT_EVICT_OPTIONS_INIT;
    for (uint32_t l = 0; l < shape().n_layers; ++l) {
      planes.push_back(twin_.DeviceQueries(l, first_query()));
    }
    for (uint32_t l = 0; l < shape().n_layers && refers(); ++l) {
      inputs[l].n_reference_rows = n_rows();
      inputs[l].reference_queries = &planes[l];
      evict.inputs = inputs.data();
      evict.inputs_len = inputs.size();
    }
    const Buffer workspace(
        gpu_, WorkspaceBytes(device_.plan(), KVEVICT_OPERATION_EVICT));
    Check(kvevict_sequence_evict(
        device_.sequence(), twin_.device_views().data(),
        twin_.device_views().size(), &evict, workspace.pointer<void>(),
        workspace.n_bytes(), device_.stream()));
    gpu_.Synchronize();
  }

  // Rows of a head in the twin's first contents, packed.
  std::vector<float> RowsOf(uint32_t layer, uint32_t plane,
                            uint32_t head) const {
    std::vector<float> rows;
    const uint32_t dim = plane < 2 ? shape().head_dim : 1;
    for (uint32_t slot = 0; slot < shape().n_tokens; ++slot) {
      const float* const row = twin_.FirstRow(layer, plane, slot, head);
      rows.insert(rows.end(), row, row + dim);
    }
    return rows;
  }
  std::vector<float> QueriesOf(uint32_t layer, uint32_t head) const {
    std::vector<float> rows;
    const kvevict_plane plane = twin_.HostQueries(layer, first_query());
    for (uint32_t g = head * group(); g < (head + 1) * group(); ++g) {
      for (uint32_t r = 0; r < n_rows(); ++r) {
        const auto* const row = reinterpret_cast<const float*>(
            plane.data + g * static_cast<uint64_t>(plane.head_stride_bytes) +
            r * static_cast<uint64_t>(plane.token_stride_bytes));
        rows.insert(rows.end(), row, row + shape().head_dim);
      }
    }
    return rows;
  }

  void CheckHead(uint32_t l, uint32_t h) {
    const std::vector<int32_t> kept = PositionsOf(device_, l, h);
    const auto n_keep = static_cast<uint32_t>(kept.size());
    const std::vector<float> q = QueriesOf(l, h), k = RowsOf(l, 0, h),
                             v = RowsOf(l, 1, h), before = RowsOf(l, 2, h);
    std::vector<float> biases;
    for (uint32_t i = 0; i < n_keep; ++i) {
      biases.push_back(*twin_.FetchedRow(l, 2, i, h));
    }
    const bool has_biases = shape().most_bias > 0.0f;
    const uint32_t n_queries = n_rows() * group(), dim = shape().head_dim;
    n_weak_ += n_queries < 2 * n_keep;
    const oracle_fit in = {q.data(),
                           nullptr,
                           k.data(),
                           v.data(),
                           n_queries,
                           shape().n_tokens,
                           dim,
                           dim,
                           1.0 / std::sqrt(double{1} * dim),
                           0.0,
                           kept.data(),
                           n_keep,
                           device_.policy().fit_ridge,
                           has_biases ? before.data() : nullptr,
                           has_biases ? biases.data() : nullptr};
    if (has_biases) CheckBiasesOf(in, fits_biases_, report_);
    std::vector<double> want(size_t{n_keep} * dim), bounds(want.size());
    (void)oracle_fit_values(&in, want.data(), bounds.data());
    for (size_t i = 0; i < want.size(); ++i) {
      const auto slot = static_cast<uint32_t>(i / dim);
      const auto e = static_cast<uint32_t>(i % dim);
      const double bound = bounds[i] + std::abs(want[i]) * 0x1p-24;
      const float x = twin_.FetchedRow(l, 1, slot, h)[e];
      report_->FailIf(
          !(std::abs(x - want[i]) <= bound),
          fmt::format("layer {}, head {}, slot {}, element {} is {}, not {} "
                      "to {}",
                      l, h, slot, e, x, want[i], bound));
      const float old = v[size_t(kept[slot]) * dim + e];
      most_ = std::max(most_, std::abs(want[i] - old) / bound);
    }
  }

  const Gpu& gpu_;
  Twin twin_;
  Side device_;
  const bool fits_biases_;
  Report* const report_;
  uint32_t n_weak_ = 0;
  double most_ = 0.0;
};

}  // namespace

void CheckFits(const Gpu& gpu, const Effort& effort, Report* report) {
  // By the window, whose rows wrap around in their ring; by more queries than slots,
  // and by fewer; and by heads of different lengths.
  struct Case {
    const char* policy;
    float most_bias;
    Layout layout = Layout::kTokenMajor;
  };
  for (const auto& [policy, most_bias, layout] : {
           Case{"snapkv:budget=60,window=16,fit=values", 0.0f},
           Case{"streaming-llm:budget=30,reference=40,fit=values", 0.0f,
                Layout::kPaged},
           Case{"random:sink=0,budget=70,reference=9,fit=values,fit_ridge=0.1",
                0.0f},
           Case{
               "random:sink=0,budget=60,heads=adaptive,reference=30,fit=values",
               0.0f},
           Case{"snapkv:budget=60,window=16,fit=bias-values", 1.5f,
                Layout::kPaged},
           Case{"streaming-llm:budget=30,reference=40,fit=bias-values", 1e-3f},
           Case{"random:sink=0,budget=70,reference=9,fit=bias-values,"
                "fit_ridge=0.1",
                1.5f, Layout::kPaged},
           Case{"random:sink=0,budget=60,heads=adaptive,reference=30,"
                "fit=bias-values",
                0.5f},
       }) {
    report->Check(fmt::format("fit: {}, biases to {}", policy, most_bias), [&] {
      FitCheck(gpu, policy, layout, most_bias, effort.seed, report).Run();
    });
  }
}

}  // namespace kvevict::gpu
