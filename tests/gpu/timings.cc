#include "tests/gpu/timings.h"

#include <fmt/format.h>

#include <functional>

#include "tests/gpu/bench.h"
#include "tests/gpu/door_timings.h"
#include "tests/gpu/matrix_rate.h"
#include "tests/gpu/stopwatch.h"

namespace kvevict::gpu {
namespace {

// Bytes read and written per second by the driver's own copy.
double CopyRate(const Gpu& gpu, const Effort& effort, const Stopwatch& watch) {
  const size_t n_bytes = effort.full ? size_t{1} << 30 : size_t{1} << 16;
  const Buffer from(gpu, n_bytes);
  const Buffer to(gpu, n_bytes);
  const Spread ms = watch.Measure([&] {
    Check(gpu.driver(),
          gpu.driver().cuMemcpyDtoDAsync(to.address(), from.address(), n_bytes,
                                         gpu.stream()),
          "cuMemcpyDtoDAsync");
  });
  return 2.0 * static_cast<double>(n_bytes) / (ms.median * 1e-3);
}

// Measures what each graph's time contains without any work.
void TimeNothing(const Gpu& gpu, const Stopwatch& watch, const Limits& limits,
                 nlohmann::json* rows) {
  const Buffer word(gpu, 4);
  AddRow(rows, "a graph that clears one word", watch.Measure([&] {
    Check(gpu.driver(),
          gpu.driver().cuMemsetD8Async(word.address(), 0, 4, gpu.stream()),
          "cuMemsetD8Async");
  }),
         4, 0, limits);
}

// A workload's steps; rows are named after it.
class Timing {
 public:
  Timing(const Gpu& gpu, const Effort& effort, const Stopwatch& watch,
         const char* name, const Workload& w, const Limits& limits,
         nlohmann::json* rows)
      : gpu_(gpu),
        data_(gpu, w, effort.seed),
        watch_(watch),
        name_(name),
        w_(w),
        limits_(limits),
        rows_(rows),
        k_bytes_(w.n_layers * w.PlaneBytes()),
        score_bytes_(uint64_t{4} * w.n_layers * w.n_kv_heads * w.n_tokens),
        pass_flops_(uint64_t{2} * w.n_layers * w.n_q_heads * w.window *
                    w.n_tokens * w.head_dim) {}

  // Calls save() whenever rows are complete.
  void Run(const std::function<void()>& save) const {
    const double score_ms = TimeScoring();
    save();
    TimeEviction();
    save();
    // Takes a minute.
    if (w_.q_dtype == KVEVICT_DTYPE_F32 || w_.head_dim > 128) return;
    TimeQueryByQuery(score_ms);
    save();
  }

 private:
  void Add(const char* step, const Spread& ms, uint64_t bytes,
           uint64_t flops) const {
    AddRow(rows_, fmt::format("{}: {}", name_, step), ms, bytes, flops,
           limits_);
  }

  double TimeScoring() const {
    const Bench both(gpu_, data_, w_.window, false, kUnpooled);
    const Spread score = watch_.Measure([&] { both.Score(); });
    Add("score_window", score, 2 * k_bytes_ + score_bytes_, 2 * pass_flops_);
    rows_->back()["score_workspace_of_k"] =
        static_cast<double>(both.score_bytes() + score_bytes_) /
        static_cast<double>(k_bytes_);
    const Bench second(gpu_, data_, w_.window, true, kUnpooled);
    Add("score_window, log-sum-exps given",
        watch_.Measure([&] { second.Score(); }), k_bytes_ + score_bytes_,
        pass_flops_);
    return score.median;
  }

  // Scores are in the L2 cache, as they are after scoring.
  void TimeEviction() const {
    const Bench bench(gpu_, data_, w_.window, false, kPooled);
    const uint64_t keep_bytes =
        uint64_t{4} * w_.n_layers * w_.n_kv_heads * w_.budget;
    bench.Score();
    bench.KeepScores();
    const auto restore = [&] { bench.RestoreScores(); };
    Add("pool", watch_.Measure([&] { bench.Pool(); }, restore),
        2 * score_bytes_, 0);
    Add("select", watch_.Measure([&] { bench.Select(); }, restore),
        score_bytes_ + keep_bytes, 0);
    Add("pool and select", watch_.Measure([&] { bench.PoolAndSelect(); }),
        score_bytes_ + keep_bytes, 0);
    Add("pool and select, one after the other",
        watch_.Measure(
            [&] {
              bench.Pool();
              bench.Select();
            },
            restore),
        3 * score_bytes_ + keep_bytes, 0);
    const uint64_t kept = uint64_t{2} * w_.n_layers * w_.n_kv_heads *
                          w_.budget * w_.head_dim * w_.element();
    const uint64_t moved = 2 * kept + keep_bytes;
    Add("compact", watch_.Measure([&] { bench.Compact(); }), moved, 0);
    Add("compact, by columns",
        watch_.Measure([&] { bench.CompactIn(cuda::CompactForm::kColumns); }),
        moved, 0);
    Add("compact, by chunks",
        watch_.Measure([&] { bench.CompactIn(cuda::CompactForm::kChunks); }),
        moved, 0);
    Add("reorder, layer by layer", watch_.Measure([&] { bench.Reorder(); }),
        4 * kept, 0);
  }

  // The keys are read twice per query, or once: scorers of this kind cannot
  // read less.
  void TimeQueryByQuery(double score_ms) const {
    for (const bool has_lse : {false, true}) {
      const Bench one(gpu_, data_, 1, has_lse, kUnpooled);
      const uint64_t n_passes = has_lse ? 1 : 2;
      const Spread naive =
          watch_.Measure([&] { one.ScoreQueryByQuery(w_.window); });
      Add(has_lse ? "score_window, query by query, one pass"
                  : "score_window, query by query",
          naive, w_.window * (n_passes * k_bytes_ + score_bytes_),
          n_passes * pass_flops_);
      rows_->back()["times_slower"] = naive.median / score_ms;
    }
  }

  const Gpu& gpu_;
  const BenchData data_;
  const Stopwatch& watch_;
  const char* const name_;
  const Workload w_;
  const Limits limits_;
  nlohmann::json* const rows_;
  const uint64_t k_bytes_;
  const uint64_t score_bytes_;
  const uint64_t pass_flops_;
};

}  // namespace

Limits MeasureLimits(const Gpu& gpu, const Effort& effort) {
  const Stopwatch watch(gpu, effort);
  const Limits limits = {CopyRate(gpu, effort, watch),
                         MatrixRate(gpu, effort.full)};
  fmt::print("copy {:.1f} GB/s, read and written; mma.sync {:.1f} TFLOP/s\n",
             limits.copy * 1e-9, limits.matrix * 1e-12);
  return limits;
}

void TimeKernels(const Gpu& gpu, const Effort& effort, const std::string& named,
                 const std::function<void()>& save, nlohmann::json* out) {
  const Stopwatch watch(gpu, effort);
  const Limits limits = MeasureLimits(gpu, effort);
  *out = {{"copy_bytes_per_s", limits.copy},
          {"matrix_flops_per_s", limits.matrix},
          {"rows", nlohmann::json::array()}};
  nlohmann::json* rows = &(*out)["rows"];
  TimeNothing(gpu, watch, limits, rows);
  const auto is_wanted = [&](const std::string& name) {
    return name.find(named) != std::string::npos;
  };
  const auto steps = [&](const char* name, const Workload& w) {
    if (!is_wanted(name)) return;
    Timing(gpu, effort, watch, name, w, limits, rows).Run(save);
  };
  const auto doors = [&](const char* name, const Workload& w) {
    if (!is_wanted(name)) return;
    TimeDoors(gpu, effort, watch, name, w, limits, rows);
    save();
  };
  const kvevict_dtype bf16 = KVEVICT_DTYPE_BF16;
  const kvevict_dtype f32 = KVEVICT_DTYPE_F32;
  if (!effort.full) {
    steps("small", {2, 4, 2, 32, 128, 16, 32, bf16, bf16});
    steps("small, f32 queries", {2, 4, 2, 32, 128, 16, 32, bf16, f32});
    doors("smaller", {2, 2, 1, 16, 48, 16, 32, bf16, bf16});
    return;
  }
  const Workload qwen3 = {36, 32, 8, 128, 16384, 64, 2048, bf16, bf16};
  const auto with = [](Workload w, kvevict_dtype dtype, kvevict_dtype q_dtype) {
    w.dtype = dtype;
    w.q_dtype = q_dtype;
    return w;
  };
  steps("36 layers, bf16, W=64", qwen3);
  steps("36 layers, bf16, W=32", {36, 32, 8, 128, 16384, 32, 2048, bf16, bf16});
  steps("36 layers, f32, W=64", with(qwen3, f32, f32));
  steps("36 layers, bf16, f32 queries, W=64", with(qwen3, bf16, f32));
  doors("36 layers, bf16", qwen3);
  doors("36 layers, f32", with(qwen3, f32, f32));
  // Hybrids: heads of 256.
  const Workload group6 = {16, 24, 4, 256, 16384, 64, 2048, bf16, bf16};
  const Workload group8 = {16, 16, 2, 256, 16384, 64, 2048, bf16, bf16};
  steps("16 layers of 256, group 6, bf16, W=64", group6);
  steps("16 layers of 256, group 6, bf16, f32 queries, W=64",
        with(group6, bf16, f32));
  steps("16 layers of 256, group 8, bf16, W=64", group8);
  steps("16 layers of 256, group 8, bf16, f32 queries, W=64",
        with(group8, bf16, f32));
  doors("16 layers of 256, group 6, bf16", group6);
  doors("16 layers of 256, group 8, bf16", group8);
}

}  // namespace kvevict::gpu
