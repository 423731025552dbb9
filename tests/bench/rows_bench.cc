// What reads all rows of a layer: redundancy of keys, rows that merge into those that
// stay, and values fitted to reference queries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/kernels/fit_values.h"
#include "core/kernels/merge.h"
#include "core/kernels/redundancy.h"
#include "core/kernels/similarity.h"
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

std::optional<Goal> Wanted(const Session& session, Goal goal) {
  return session.smoke ? std::nullopt : std::optional(goal);
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

  // The sum of the sizes of a head's elements that stay.
  double Sum(const std::vector<int32_t>& keep) const {
    double sum = 0.0;
    for (const int32_t slot : keep) {
      for (uint32_t i = 0; i < w_.head_dim; ++i) {
        sum += std::abs(OfBf16(rows_[size_t(slot) * w_.head_dim + i]));
      }
    }
    return sum;
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
    before = values.Sum(keep);
  }
  // Means are smaller than their terms.
  void ExpectShrunk(const std::string& name, double most) const {
    const double sum = values.Sum(keep);
    if (!(sum > 0.1 * before && sum < most * before)) {
      throw std::runtime_error(
          fmt::format("{}: values of {}, before {}", name, sum, before));
    }
  }

  const Rows keys, values;
  std::vector<int32_t> keep;
  double before = 0.0;
};

// A row of flops, measured beside the peak.
template <class Run, class Verify>
void MeasureFlops(Session& session, const std::string& name, uint32_t n_threads,
                  double flops, std::optional<Goal> goal, const Run& run,
                  const Verify& verify) {
  Row& row = session.report.AddRow(name, n_threads, "flop/s");
  Comparison& peak = row.Against("f32 FMA peak", goal);
  Repeat(session, [&](bool measured) {
    const double limit = session.limits.FmaFlops(session.simd, 1);
    const Timing timing = run();
    verify();
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
  if (!session.wants(name)) return;
  session.announce(name);
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
  // They are the result of a softmax.
  const auto verify = [&] {
    for (uint32_t head = 0; head < w.n_kv_heads; ++head) {
      double sum = 0.0;
      for (uint32_t t = 0; t < w.n_tokens; ++t) {
        sum -= scores[size_t{head} * w.n_tokens + t];
      }
      if (!(std::abs(sum - 1.0) < 1e-4)) {
        throw std::runtime_error(
            fmt::format("redundancy: head {} has {} of it", head, sum));
      }
    }
  };
  const double n = w.n_tokens;
  if (mean == 0.0f) {  // a pair's cosine is the same both ways
    MeasureFlops(session, name, 1, n * n * w.head_dim * w.n_kv_heads,
                 Wanted(session, {0.55, 0.75}), subtract, verify);
    return;
  }
  Row& row = session.report.AddRow(name, 1, "keys/s");
  Repeat(session, [&](bool measured) {
    const Timing timing = subtract();
    verify();
    if (measured) row.Add(timing, n * w.n_kv_heads);
  });
}

// Blocks of keys in all directions: every pair is compared, and half of the cosines
// count.
void BenchBlocks(Session& session) {
  constexpr uint32_t kBlock = 16;
  const Workload w = LayerOfTokens(session, 4096);
  const std::string name =
      fmt::format("redundancy of blocks, bf16 S={}", w.n_tokens);
  if (!session.wants(name)) return;
  session.announce(name);
  const Rows keys(w, 0.0f, 1);
  HugeBuffer<uint8_t> scratch(SimilarityScratchBytes(w.n_tokens, w.head_dim));
  std::vector<uint32_t> blocks(w.n_tokens / kBlock);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int64_t> sums(blocks.size());
  const auto compare = [&](uint32_t head, uint32_t) {
    SumSimilarity(
        session.simd,
        {keys.Of(head), 0, w.n_tokens, w.head_dim, kBlock, blocks.data(),
         static_cast<uint32_t>(blocks.size()), sums.data(), scratch.data()});
  };
  const double n = w.n_tokens;
  MeasureFlops(
      session, name, 1, n * n * w.head_dim * w.n_kv_heads,
      Wanted(session, {0.55, 0.7}),
      [&] { return TimeItems(1, w.n_kv_heads, compare); },
      [&] {
        if (!(*std::min_element(sums.begin(), sums.end()) > 0)) {
          throw std::runtime_error("a block is like no other");
        }
      });
}

void BenchFitOf(Session& session, bool fits_biases) {
  const Workload w = LayerOfTokens(session, 8192);
  const uint32_t n_keep = w.n_tokens / 16, n_queries = 2 * n_keep;
  const std::string name =
      fmt::format("fit{} bf16 S={} -> {}, {} queries",
                  fits_biases ? " biases" : "", w.n_tokens, n_keep, n_queries);
  if (!session.wants(name)) return;
  session.announce(name);
  constexpr uint32_t kThreads = 2;
  const Kept layer(w, n_keep);
  HugeBuffer<float> queries(size_t{w.n_kv_heads} * n_queries * w.head_dim);
  FillGaussian(queries, 0.0f, 3);
  std::vector<float> biases(size_t{w.n_kv_heads} * w.n_tokens);
  FitValues all;
  all.rows.k_dim = all.rows.v_dim = w.head_dim;
  all.rows.n_queries = n_queries;
  all.rows.non_causal = true;
  all.rows.queries.row_stride = int64_t{4} * w.head_dim;
  all.rows.queries.element_stride = 4;
  std::vector<HugeBuffer<uint8_t>> scratch;
  for (uint32_t i = 0; i < kThreads; ++i) {
    scratch.emplace_back(
        FitScratchBytes(all.rows, w.n_tokens, fits_biases).value());
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
    if (fits_biases) {
      float* const of_head = &biases[size_t{head} * w.n_tokens];
      std::fill_n(of_head, w.n_tokens, 0.0f);
      fit.rows.biases.base = reinterpret_cast<const uint8_t*>(of_head);
      fit.rows.biases.row_stride = sizeof(float);
      fit.fits_biases = true;
    }
    fit.scratch = scratch[worker].data();
    FitKeptValues(session.simd, fit);
  };
  // What the queries read before, which is nearly all of it without biases.
  const double flops = 4.0 * n_queries * w.n_tokens * w.head_dim * w.n_kv_heads;
  MeasureFlops(
      session, name, kThreads, flops,
      fits_biases ? std::nullopt : Wanted(session, {0.3, 0.5}),
      [&] { return TimeItems(kThreads, w.n_kv_heads, fit_head); },
      // A diffuse query reads a mean of all values, which is smaller than that of
      // the kept ones: these shrink.
      [&] { layer.ExpectShrunk("fit", 0.999); });
}

}  // namespace

void BenchRedundancy(Session& session) {
  BenchKeys(session, "no two similar", 0.0f);
  BenchKeys(session, "around a mean", 1.5f);
  BenchBlocks(session);
}

// Every row that goes meets every row that stays.
void BenchMerge(Session& session) {
  const Workload w = LayerOfTokens(session, 8192);
  const uint32_t n_keep = w.n_tokens / 8;
  const std::string name =
      fmt::format("merge bf16 S={} -> {}, values", w.n_tokens, n_keep);
  if (!session.wants(name)) return;
  session.announce(name);
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
  MeasureFlops(
      session, name, 1,
      2.0 * n_keep * (w.n_tokens - n_keep) * w.head_dim * w.n_kv_heads,
      Wanted(session, {0.5, 0.7}),
      [&] { return TimeItems(1, w.n_kv_heads, merge); },
      [&] { layer.ExpectShrunk("merge", 0.9); });
}

void BenchFit(Session& session) {
  BenchFitOf(session, false);
  BenchFitOf(session, true);
}

}  // namespace kvevict::bench
