#include "tests/gpu/timings.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "tests/gpu/bench.h"
#include "tests/gpu/matrix_rate.h"

namespace kvevict::gpu {
namespace {

struct Spread {
  double median;
  double least;
  double most;
};

// Times graphs.
class Stopwatch {
 public:
  Stopwatch(const Gpu& gpu, const Effort& effort)
      : gpu_(gpu),
        n_runs_(effort.full ? 21 : 1),
        from_(gpu, effort.full ? kLeadBytes : 256),
        to_(gpu, from_.n_bytes()) {}

  // Of launches of a graph of `work`. Before each, untimed: a copy, so that the
  // launch is queued when its turn comes and its input is not in the L2 cache,
  // then `prepare`.
  Spread Measure(
      const std::function<void()>& work,
      const std::function<void()>& prepare = [] {}) const {
    const Graph graph(gpu_, work);
    prepare();
    graph.Launch();
    std::vector<double> ms(n_runs_);
    for (double& m : ms) {
      Check(gpu_.driver(),
            gpu_.driver().cuMemcpyDtoDAsync(to_.address(), from_.address(),
                                            to_.n_bytes(), gpu_.stream()),
            "cuMemcpyDtoDAsync");
      prepare();
      m = gpu_.Time([&] { graph.Launch(); });
    }
    std::sort(ms.begin(), ms.end());
    return {ms[ms.size() / 2], ms.front(), ms.back()};
  }

 private:
  static constexpr size_t kLeadBytes = size_t{512} << 20;  // 0.2 ms on an H200

  const Gpu& gpu_;
  const int n_runs_;
  const Buffer from_;
  const Buffer to_;
};

// What the machine reaches, measured just before.
struct Limits {
  double copy;    // bytes read and written per second, by the driver's own copy
  double matrix;  // bf16 FLOPs per second, by mma.sync
};

void AddRow(nlohmann::json* rows, const std::string& name, const Spread& ms,
            uint64_t bytes, uint64_t flops, const Limits& limits) {
  const double seconds = ms.median * 1e-3;
  const double rate = static_cast<double>(bytes) / seconds;
  const double flop_rate = static_cast<double>(flops) / seconds;
  rows->push_back({{"name", name},
                   {"ms", ms.median},
                   {"ms_least", ms.least},
                   {"ms_most", ms.most},
                   {"bytes", bytes},
                   {"bytes_per_s", rate},
                   {"of_copy_rate", rate / limits.copy},
                   {"flops", flops},
                   {"flops_per_s", flop_rate},
                   {"of_matrix_rate", flop_rate / limits.matrix}});
  fmt::print(
      "{:<44} {:9.4f} ms {:8.1f} GB/s ({:.2f} of copy) {:7.1f} TFLOP/s ({:.2f} "
      "of matrix)\n",
      name, ms.median, rate * 1e-9, rate / limits.copy, flop_rate * 1e-12,
      flop_rate / limits.matrix);
  std::fflush(stdout);
}

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

// What stands at the ends of each graph's time.
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

// A workload's steps, its rows named after it.
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

  // The keys are read twice per query, or once: no scorer of this kind can do
  // with less.
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

void TimeKernels(const Gpu& gpu, const Effort& effort,
                 const std::function<void()>& save, nlohmann::json* out) {
  const Stopwatch watch(gpu, effort);
  const Limits limits = {CopyRate(gpu, effort, watch),
                         MatrixRate(gpu, effort.full)};
  fmt::print("copy {:.1f} GB/s, read and written; mma.sync {:.1f} TFLOP/s\n",
             limits.copy * 1e-9, limits.matrix * 1e-12);
  *out = {{"copy_bytes_per_s", limits.copy},
          {"matrix_flops_per_s", limits.matrix},
          {"rows", nlohmann::json::array()}};
  nlohmann::json* rows = &(*out)["rows"];
  TimeNothing(gpu, watch, limits, rows);
  const auto time = [&](const char* name, const Workload& w) {
    Timing(gpu, effort, watch, name, w, limits, rows).Run(save);
  };
  if (!effort.full) {
    time("small", {2, 4, 2, 32, 128, 16, 32, KVEVICT_DTYPE_BF16});
    return;
  }
  time("36 layers, bf16, W=64",
       {36, 32, 8, 128, 16384, 64, 2048, KVEVICT_DTYPE_BF16});
  time("36 layers, bf16, W=32",
       {36, 32, 8, 128, 16384, 32, 2048, KVEVICT_DTYPE_BF16});
  time("36 layers, f32, W=64",
       {36, 32, 8, 128, 16384, 64, 2048, KVEVICT_DTYPE_F32});
}

}  // namespace kvevict::gpu
