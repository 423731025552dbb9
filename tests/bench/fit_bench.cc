// Fits the values of a layer's kept rows to reference queries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/kernels/fit_values.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

// One layer's keys and values, bf16 [n_kv_heads, n_tokens, head_dim], and f32
// queries [n_kv_heads, n_queries, head_dim]; one token in n_tokens / n_keep stays.
class FitData {
 public:
  FitData(const Workload& workload, uint32_t n_keep, uint32_t n_queries,
          bool fits_biases)
      : w_(workload),
        biases_(fits_biases ? size_t{w_.n_kv_heads} * w_.n_tokens : 0),
        keys_(size_t{w_.n_kv_heads} * w_.n_tokens * w_.head_dim),
        values_(size_t{w_.n_kv_heads} * w_.n_tokens * w_.head_dim),
        queries_(size_t{w_.n_kv_heads} * n_queries * w_.head_dim),
        n_queries_(n_queries),
        keep_(n_keep) {
    std::mt19937_64 engine(1);
    std::normal_distribution<float> gaussian;
    for (HugeBuffer<uint16_t>* rows : {&keys_, &values_}) {
      for (size_t i = 0; i < rows->size(); ++i) {
        const float v = gaussian(engine);
        uint32_t bits;
        std::memcpy(&bits, &v, sizeof(bits));
        (*rows)[i] = static_cast<uint16_t>(bits >> 16);
      }
    }
    for (size_t i = 0; i < queries_.size(); ++i) queries_[i] = gaussian(engine);
    for (uint32_t i = 0; i < n_keep; ++i) {
      keep_[i] = static_cast<int32_t>(uint64_t{i} * w_.n_tokens / n_keep);
    }
    const size_t n_bytes =
        FitScratchBytes(Sizes(), w_.n_tokens, !biases_.empty()).value();
    for (uint32_t i = 0; i < kThreads; ++i) scratch_.emplace_back(n_bytes);
    before_ = Sum();
  }

  // A work item is a KV head.
  Timing Fit(SimdTarget simd) {
    return TimeItems(
        kThreads, w_.n_kv_heads, [&](uint32_t head, uint32_t worker) {
          FitValues fit;
          fit.rows = Sizes();
          fit.rows.queries.base = reinterpret_cast<const uint8_t*>(
              queries_.data() + size_t{head} * n_queries_ * w_.head_dim);
          fit.rows.queries.row_stride = int64_t{4} * w_.head_dim;
          fit.rows.queries.element_stride = 4;
          fit.rows.keys = RowsOf(keys_, head);
          fit.rows.values = RowsOf(values_, head);
          if (!biases_.empty()) {
            float* const biases = &biases_[size_t{head} * w_.n_tokens];
            std::fill_n(biases, w_.n_tokens, 0.0f);
            fit.rows.biases.base = reinterpret_cast<const uint8_t*>(biases);
            fit.rows.biases.row_stride = sizeof(float);
            fit.fits_biases = true;
          }
          fit.rows.n_tokens = w_.n_tokens;
          fit.rows.scale = 1.0f / std::sqrt(static_cast<float>(w_.head_dim));
          fit.keep = keep_.data();
          fit.n_keep = static_cast<uint32_t>(keep_.size());
          fit.ridge = 0.01;
          fit.scratch = scratch_[worker].data();
          FitKeptValues(simd, fit);
        });
  }

  // A diffuse query reads a mean of all values, which is smaller than that of the
  // kept ones: these shrink.
  void Check() const {
    const double sum = Sum();
    if (!(sum > 0.1 * before_ && sum < 0.999 * before_)) {
      throw std::runtime_error(
          fmt::format("fit: values of {}, before {}", sum, before_));
    }
  }

  static constexpr uint32_t kThreads = 2;

 private:
  Attention Sizes() const {
    Attention rows;
    rows.k_dim = rows.v_dim = w_.head_dim;
    rows.n_queries = n_queries_;
    rows.non_causal = true;
    return rows;
  }
  RowSource RowsOf(const HugeBuffer<uint16_t>& rows, uint32_t head) const {
    RowSource source;
    source.base = reinterpret_cast<const uint8_t*>(
        rows.data() + size_t{head} * w_.n_tokens * w_.head_dim);
    source.row_stride = int64_t{2} * w_.head_dim;
    source.element_stride = 2;
    source.dtype = DType::kBF16;
    return source;
  }
  // The sum of the sizes of a head's values that stay.
  double Sum() const {
    double sum = 0.0;
    for (const int32_t slot : keep_) {
      for (uint32_t i = 0; i < w_.head_dim; ++i) {
        const uint32_t bits = uint32_t{values_[size_t(slot) * w_.head_dim + i]}
                              << 16;
        float v;
        std::memcpy(&v, &bits, sizeof(v));
        sum += std::abs(v);
      }
    }
    return sum;
  }

  const Workload w_;
  std::vector<float> biases_;  // [n_kv_heads, n_tokens], or empty
  HugeBuffer<uint16_t> keys_;
  HugeBuffer<uint16_t> values_;
  HugeBuffer<float> queries_;
  const uint32_t n_queries_;
  std::vector<int32_t> keep_;
  std::vector<HugeBuffer<uint8_t>> scratch_;  // per thread
  double before_ = 0.0;
};

void BenchFitOf(Session& session, bool fits_biases) {
  Workload w = session.smoke ? kSmoke : kA;
  if (!session.smoke) w.n_tokens = 8192;
  const uint32_t n_keep = w.n_tokens / 16;
  const uint32_t n_queries = 2 * n_keep;
  const std::string name =
      fmt::format("fit{} bf16 S={} -> {}, {} queries",
                  fits_biases ? " biases" : "", w.n_tokens, n_keep, n_queries);
  if (!session.wants(name)) return;
  session.announce(name);
  FitData data(w, n_keep, n_queries, fits_biases);
  Row& row = session.report.AddRow(name, FitData::kThreads, "flop/s");
  // What the queries read before, which is nearly all of it without biases.
  const double flops = 4.0 * n_queries * w.n_tokens * w.head_dim * w.n_kv_heads;
  const bool has_goal = !session.smoke && !fits_biases;
  Comparison& peak = row.Against(
      "f32 FMA peak", has_goal ? std::optional(Goal{0.3, 0.5}) : std::nullopt);
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(session.simd, 1);
    const Timing timing = data.Fit(session.simd);
    data.Check();
    if (!measured) return;
    row.Add(timing, flops);
    peak.ratio.Add(flops / timing.cpu / limit);
  });
}

}  // namespace

void BenchFit(Session& session) {
  for (const bool fits_biases : {false, true}) {
    BenchFitOf(session, fits_biases);
  }
}

}  // namespace kvevict::bench
