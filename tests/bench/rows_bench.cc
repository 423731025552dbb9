// What reads all rows of a layer: redundancy of keys, rows that merge into those that
// stay, and values fitted to reference queries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/kernels/fit_values.h"
#include "core/kernels/merge.h"
#include "core/kernels/redundancy.h"
#include "tests/bench/plans.h"
#include "tests/bench/suites.h"
#include "tests/bench/workload.h"

namespace kvevict::bench {
namespace {

Workload LayerOfTokens(const Session& session, uint32_t n_tokens) {
  Workload w = session.smoke ? kSmoke : kA;
  if (!session.smoke) w.n_tokens = n_tokens;
  return w;
}

// One layer's keys or values, bf16 [n_kv_heads, n_tokens, head_dim].
class Rows {
 public:
  Rows(const Workload& w, float mean, uint64_t seed)
      : w_(w), rows_(size_t{w.n_kv_heads} * w.n_tokens * w.head_dim) {
    FillGaussian(rows_, mean, seed);
  }

  RowSource Of(uint32_t head) const {
    RowSource source;
    source.base = reinterpret_cast<const uint8_t*>(
        rows_.data() + size_t{head} * w_.n_tokens * w_.head_dim);
    source.row_stride = int64_t{2} * w_.head_dim;
    source.element_stride = 2;
    source.dtype = DType::kBF16;
    return source;
  }

 private:
  const Workload w_;
  HugeBuffer<uint16_t> rows_;
};

// A layer of which one token in n_tokens / n_keep stays.
struct Kept {
  Kept(const Workload& w, uint32_t n_keep)
      : keys(w, 0.0f, 1), values(w, 0.0f, 2), keep(n_keep) {
    for (uint32_t i = 0; i < n_keep; ++i) {
      keep[i] = static_cast<int32_t>(uint64_t{i} * w.n_tokens / n_keep);
    }
  }

  const Rows keys, values;
  std::vector<int32_t> keep;
};

// A row of flops, measured beside the peak.
template <class Run>
void MeasureFlops(Session& session, const std::string& name, uint32_t n_threads,
                  double flops, Goal goal, const Run& run) {
  Row& row = session.report.AddRow(name, n_threads, "flop/s");
  Comparison& peak = row.Against("f32 FMA peak", session.Aim(goal));
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(session.simd, 1);
    const Timing timing = run();
    if (!measured) return;
    row.Add(timing, flops);
    peak.ratio.Add(flops / timing.cpu / limit);
  });
}

// Keys in all directions, of which no two are similar and every pair is compared, and
// keys around a mean, as caches have.
void BenchKeys(Session& session, const char* kind, float mean) {
  const Workload w = LayerOfTokens(session, 16128);
  const std::string name =
      fmt::format("redundancy bf16 S={}, {}", w.n_tokens, kind);
  if (!session.Begins(name)) return;
  const Rows keys(w, mean, 1);
  HugeBuffer<float> scores(size_t{w.n_kv_heads} * w.n_tokens);
  HugeBuffer<uint8_t> scratch(RedundancyScratchBytes(w.n_tokens, w.head_dim));
  const auto subtract = [&] {
    std::fill_n(scores.data(), scores.size(), 0.0f);
    return TimeItems(1, w.n_kv_heads, [&](uint32_t head, uint32_t) {
      SubtractRedundancy(
          session.simd,
          {keys.Of(head), w.n_tokens, w.head_dim, 0.5f, 1.0f, 1.0f,
           scores.data() + size_t{head} * w.n_tokens, scratch.data()});
    });
  };
  const double n = w.n_tokens;
  if (mean == 0.0f) {  // a pair's cosine is the same both ways
    MeasureFlops(session, name, 1, n * n * w.head_dim * w.n_kv_heads,
                 {0.55, 0.75}, subtract);
    return;
  }
  Row& row = session.report.AddRow(name, 1, "keys/s");
  Repeat(session, [&](bool measured) {
    const Timing timing = subtract();
    if (measured) row.Add(timing, n * w.n_kv_heads);
  });
}

}  // namespace

void BenchRedundancy(Session& session) {
  BenchKeys(session, "no two similar", 0.0f);
  BenchKeys(session, "around a mean", 1.5f);
}

// Every row that goes meets every row that stays.
void BenchMerge(Session& session) {
  const Workload w = LayerOfTokens(session, 8192);
  const uint32_t n_keep = w.n_tokens / 8;
  const std::string name =
      fmt::format("merge bf16 S={} -> {}, values", w.n_tokens, n_keep);
  if (!session.Begins(name)) return;
  const Kept layer(w, n_keep);
  HugeBuffer<uint8_t> scratch(
      MergeScratchBytes(w.n_tokens, w.head_dim, w.head_dim));
  const auto merge = [&](uint32_t head, uint32_t) {
    MergeRowsArgs args;
    args.keys = layer.keys.Of(head);
    args.values = layer.values.Of(head);
    args.n_tokens = w.n_tokens;
    args.key_dim = args.value_dim = w.head_dim;
    args.keep = layer.keep.data();
    args.n_keep = n_keep;
    args.scratch = scratch.data();
    MergeRows(session.simd, args);
  };
  MeasureFlops(session, name, 1,
               2.0 * n_keep * (w.n_tokens - n_keep) * w.head_dim * w.n_kv_heads,
               {0.5, 0.7}, [&] { return TimeItems(1, w.n_kv_heads, merge); });
}

void BenchFit(Session& session) {
  const Workload w = LayerOfTokens(session, 8192);
  const uint32_t n_keep = w.n_tokens / 16, n_queries = 2 * n_keep;
  const std::string name = fmt::format("fit bf16 S={} -> {}, {} queries",
                                       w.n_tokens, n_keep, n_queries);
  if (!session.Begins(name)) return;
  constexpr uint32_t kThreads = 2;
  const Kept layer(w, n_keep);
  HugeBuffer<float> queries(size_t{w.n_kv_heads} * n_queries * w.head_dim);
  FillGaussian(queries, 0.0f, 3);
  FitValues all;
  all.rows.k_dim = all.rows.v_dim = w.head_dim;
  all.rows.n_queries = n_queries;
  all.rows.non_causal = true;
  all.rows.queries.row_stride = int64_t{4} * w.head_dim;
  all.rows.queries.element_stride = 4;
  std::vector<HugeBuffer<uint8_t>> scratch;
  for (uint32_t i = 0; i < kThreads; ++i) {
    scratch.emplace_back(FitScratchBytes(all.rows, w.n_tokens, false).value());
  }
  all.rows.n_tokens = w.n_tokens;
  all.rows.scale = 1.0f / std::sqrt(static_cast<float>(w.head_dim));
  all.keep = layer.keep.data();
  all.n_keep = n_keep;
  all.ridge = 0.01;
  const auto fit_head = [&](uint32_t head, uint32_t worker) {
    FitValues fit = all;
    fit.rows.queries.base = reinterpret_cast<const uint8_t*>(
        queries.data() + size_t{head} * n_queries * w.head_dim);
    fit.rows.keys = layer.keys.Of(head);
    fit.rows.values = layer.values.Of(head);
    fit.scratch = scratch[worker].data();
    FitKeptValues(session.simd, fit);
  };
  // What the queries read before, which is nearly all of it.
  const double flops = 4.0 * n_queries * w.n_tokens * w.head_dim * w.n_kv_heads;
  MeasureFlops(session, name, kThreads, flops, {0.3, 0.5},
               [&] { return TimeItems(kThreads, w.n_kv_heads, fit_head); });
}

}  // namespace kvevict::bench
